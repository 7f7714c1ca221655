// An application in a process of its own: takes the lease that it is told, and tells what becomes of it.
import { Fencepost } from '../../../src/index.ts'

const fencepost = await Fencepost.open({ ttl: '3s' })
const lease = await fencepost.acquire(process.argv[2]!)
lease.on('lost', ({ reason }) => {
  console.log(`lost: ${reason}`)
  void fencepost.close()
})
console.log('held')

// A process that takes a lease and keeps it until it is killed.
import { Fencepost } from '../../src/index.ts'

const [url = '', name = '', ttl = ''] = process.argv.slice(2)
const fencepost = await Fencepost.open({ connectionString: url, ttl: Number(ttl) })
await fencepost.acquire(name)
process.send!('held')

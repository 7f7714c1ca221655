// The same as bare.mjs by way of the library, as `npm run build` has made it.
import { Fencepost } from '../../dist/index.js'

const fencepost = await Fencepost.open()
await fencepost.acquire(process.argv[2])
process.stdout.write('granted\n', () => process.exit(0))

// A service in front of a store that cannot compare tokens, to be paused in the middle of a request.
import { type IncomingMessage, type ServerResponse, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Pool } from 'pg'
import { HttpFence } from '../../../src/http/http-fence.ts'
import { RequestRefusedError } from '../../../src/http/request-refused.ts'

const [url, resource] = process.argv.slice(2)
const pool = new Pool({ connectionString: url!, max: 4 })
pool.on('error', () => {})
const fence = new HttpFence(pool, { timeout: '1s' })

async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
  try {
    const passage = await fence.enter(request.headers, resource!)
    process.send!({ state: 'inside' })
    await new Promise((resolve) => process.once('message', resolve))
    // It writes without looking at its signal.
    process.send!({ wrote: passage.token.toString() })
    response.end(String(await passage.leave()))
  } catch (error) {
    if (!(error instanceof RequestRefusedError)) throw error
    error.writeTo(response)
  }
}

const server = createServer((request, response) => void handle(request, response))
server.listen(0, '127.0.0.1', () => {
  process.send!({ port: (server.address() as AddressInfo).port })
})

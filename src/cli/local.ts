/** `fencepost local start|stop|status|url`. */
import { localServerStatus, startLocalServer, stopLocalServer } from '../database/local-server.ts'
import type { LocalServerStatus } from '../database/local-server.ts'
import { FencepostError } from '../errors.ts'

/** As init scripts have it: the status of a service that is not running. */
const NOT_RUNNING = 3
/** EX_UNAVAILABLE: there is no database to use. */
const UNAVAILABLE = 69

export type LocalAction = 'start' | 'stop' | 'status' | 'url'

/**
 * Runs one action and returns the exit code. Only `url` and `--json` print the password: the rest may be read by
 * others, in a log or over a shoulder.
 */
export async function runLocal(
  action: LocalAction,
  options: { readonly json?: boolean },
  io: { readonly stdout: NodeJS.WritableStream; readonly stderr: NodeJS.WritableStream },
): Promise<number> {
  const print = (facts: object, text: string): void => {
    io.stdout.write(`${options.json === true ? toJson(facts) : text}\n`)
  }
  try {
    return await perform(action, print, (message) => io.stderr.write(`${message}\n`))
  } catch (error) {
    if (!(error instanceof FencepostError)) throw error
    io.stderr.write(`${error.message}\n`)
    return UNAVAILABLE
  }
}

async function perform(
  action: LocalAction,
  print: (facts: object, text: string) => void,
  complain: (message: string) => void,
): Promise<number> {
  if (action === 'start') {
    const server = await startLocalServer()
    print(server, `${server.started ? 'Started' : 'Already running'}: ${describe(server)}`)
    return 0
  }
  if (action === 'stop') {
    const server = await stopLocalServer()
    print(server, server.stopped ? `Stopped. The data stay in ${server.directory}.` : 'Not running.')
    return 0
  }
  const server = await localServerStatus()
  if (action === 'status') {
    print(server, server.running ? `Running: ${describe(server)}` : `Not running. Data: ${server.directory}`)
    return server.running ? 0 : NOT_RUNNING
  }
  if (server.url === undefined) {
    complain('fencepost: the local server is not running. Start it: fencepost local start')
    return UNAVAILABLE
  }
  print({ url: server.url }, server.url)
  return 0
}

function describe(server: LocalServerStatus): string {
  return [
    `PostgreSQL ${server.version} on 127.0.0.1:${server.port}, pid ${server.pid}`,
    `data in ${server.directory}`,
    'for its URL: fencepost local url',
  ].join('; ')
}

/** What is not known is null, so that every answer has the same keys. */
function toJson(facts: object): string {
  return JSON.stringify(facts, (_, value: unknown) => value ?? null)
}

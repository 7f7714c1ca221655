/**
 * The local server: one PostgreSQL per operating-system user, shared by all of that user's processes on this
 * machine. Whoever comes first starts it, later ones join, and it outlives them all until it is stopped. It holds
 * people's data, so every commit is synced to disk.
 */
import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { FencepostError } from '../errors.ts'
import { answersAt, serverUrl } from './data-directory.ts'
import { EmbeddedServer, isPortFree } from './embedded-server.ts'
import { readPostmaster, stopPostmaster, type Postmaster } from './postmaster.ts'

const JOIN_WITHIN_MS = 60_000
const POLL_MS = 20

/** Given on the command line of the server, so that no edited configuration file can turn them off. */
const DURABLE = { fsync: 'on', full_page_writes: 'on', synchronous_commit: 'on' }
/** Every process of the user has its own pool, so the usual 100 connections are soon gone. */
const SETTINGS = { ...DURABLE, max_connections: '200' }

/** What is known about the local server. */
export interface LocalServerStatus {
  /** True when the server's process lives, also while it starts or stops. */
  readonly running: boolean
  /** The folder of its data and log. */
  readonly directory: string
  /** The URL with the password. Undefined unless the server is running. It stays the same while its port is free. */
  readonly url: string | undefined
  readonly port: number | undefined
  readonly pid: number | undefined
  /** PostgreSQL's major version, such as '18'. Undefined when there are no data yet. */
  readonly version: string | undefined
}

/** A running local server. */
export interface LocalServer extends LocalServerStatus {
  readonly url: string
  /** True when this call started the server, false when it joined one. */
  readonly started: boolean
}

/** Where the local server keeps its files. */
export interface LocalServerOptions {
  /**
   * Default: FENCEPOST_LOCAL_DIR; else /var/lib/fencepost for root; else fencepost in XDG_DATA_HOME or
   * ~/.local/share. It must be on a disk of this machine: two machines on one folder do not see each other.
   */
  readonly directory?: string
}

function localDirectory(options: LocalServerOptions): string {
  const chosen = options.directory ?? process.env['FENCEPOST_LOCAL_DIR']
  if (chosen !== undefined && chosen !== '') return resolve(chosen)
  if (process.getuid?.() === 0) return '/var/lib/fencepost'
  const dataHome = process.env['XDG_DATA_HOME']
  // The XDG rules: a relative path is to be ignored.
  if (dataHome?.startsWith('/') === true) return join(dataHome, 'fencepost')
  return join(homedir(), '.local', 'share', 'fencepost')
}

const dataOf = (directory: string): string => join(directory, 'data')

/** Undefined when the file is missing. A folder of another user is an error that says so. */
async function readOwn(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    if (code === 'ENOENT') return undefined
    if (code !== 'EACCES') throw error
    throw new FencepostError(
      'LOCAL_SERVER_FAILED',
      `${file} may not be read: the local server there belongs to another user. Set FENCEPOST_LOCAL_DIR to a folder of your own.`,
      { cause: error },
    )
  }
}

/** The server that runs on the folder, if any. */
async function currentPostmaster(directory: string): Promise<Postmaster | undefined> {
  await readOwn(join(dataOf(directory), 'PG_VERSION'))
  return readPostmaster(dataOf(directory))
}

async function describe(directory: string, postmaster: Postmaster | undefined): Promise<LocalServerStatus> {
  const data = dataOf(directory)
  return {
    running: postmaster !== undefined,
    directory,
    url: postmaster && (await serverUrl(data, postmaster.port)),
    port: postmaster?.port,
    pid: postmaster?.pid,
    version: (await readOwn(join(data, 'PG_VERSION')))?.trim(),
  }
}

/**
 * Starts the local server, or joins the one that runs. It takes connections when this returns. Any number of
 * processes may call it at once: they all get the same server. The caller may end at any time; the server stays.
 *
 * @throws FencepostError with code `LOCAL_SERVER_FAILED`.
 * @example
 * const { url } = await startLocalServer()
 */
export async function startLocalServer(options: LocalServerOptions = {}): Promise<LocalServer> {
  const directory = localDirectory(options)
  for (let triesLeft = 3; ;) {
    const joined = await joinServer(directory)
    if (joined !== undefined) return joined
    try {
      const port = await lastPort(directory)
      await EmbeddedServer.start({
        directory,
        settings: SETTINGS,
        detached: true,
        ...(port !== undefined && { port }),
      })
      const server = await describeReady(directory, true)
      if (server !== undefined) return server
    } catch (error) {
      // Whoever loses the race for the postmaster's interlock joins the winner. The winner may fail in turn, or
      // the last of a killed server may not be gone, so a failure without a server in sight is tried again.
      const isLost = (await currentPostmaster(directory)) !== undefined
      if (!isLost) triesLeft -= 1
      if (triesLeft === 0) throw error
    }
  }
}

async function describeReady(directory: string, started: boolean): Promise<LocalServer | undefined> {
  const status = await describe(directory, await currentPostmaster(directory))
  return status.url === undefined ? undefined : { ...status, url: status.url, started }
}

/** Waits while a server starts or stops. Undefined when there is none to join. */
async function joinServer(directory: string): Promise<LocalServer | undefined> {
  const deadline = Date.now() + JOIN_WITHIN_MS
  for (;;) {
    const postmaster = await currentPostmaster(directory)
    if (postmaster === undefined) return undefined
    if (postmaster.isReady && (await answersAt(await serverUrl(dataOf(directory), postmaster.port)))) {
      const server = await describeReady(directory, false)
      if (server !== undefined) return server
    }
    if (Date.now() > deadline) {
      throw new FencepostError(
        'LOCAL_SERVER_FAILED',
        `the local server (pid ${postmaster.pid}) took no connection within ${JOIN_WITHIN_MS / 1_000} s. See ${join(directory, 'server.log')}, or run: fencepost local stop`,
      )
    }
    await sleep(POLL_MS)
  }
}

/** The port of the run before, so that a URL which was written down stays right. PostgreSQL keeps its last command line. */
async function lastPort(directory: string): Promise<number | undefined> {
  const commandLine = await readOwn(join(dataOf(directory), 'postmaster.opts'))
  const port = Number(/"-p" "(\d+)"/.exec(commandLine ?? '')?.[1])
  return port > 0 && (await isPortFree(port)) ? port : undefined
}

/** Stops the local server for all who use it. `stopped` is false when none was running. Data stay. */
export async function stopLocalServer(
  options: LocalServerOptions = {},
): Promise<LocalServerStatus & { readonly stopped: boolean }> {
  const directory = localDirectory(options)
  const postmaster = await currentPostmaster(directory)
  if (postmaster !== undefined) await stopPostmaster(dataOf(directory), postmaster.pid, 'fast')
  return { ...(await describe(directory, undefined)), stopped: postmaster !== undefined }
}

/** What is known about the local server, without connecting to it and without starting it. */
export async function localServerStatus(options: LocalServerOptions = {}): Promise<LocalServerStatus> {
  const directory = localDirectory(options)
  return describe(directory, await currentPostmaster(directory))
}

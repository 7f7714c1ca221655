import { setTimeout as sleep } from 'node:timers/promises'
import type { AcquireOptions, Fencepost, Lease } from '../../src/index.ts'
import { Stream } from '../run/stream.ts'
import { outcomeOf } from './outcome.ts'
import type { Recorder } from './recorder.ts'
import { type Round, type WritePlan, drawQuickRound, drawRound } from './round.ts'
import { type ClientSettings, quickLease, rowsOf } from './settings.ts'
import { at } from './steps.ts'
import type { Writer } from './writer.ts'

const insistentStrands = 3
const insistentPauseMs = 20

/** What the workers of a client share. */
export interface Surroundings {
  readonly settings: ClientSettings
  readonly recorder: Recorder
  readonly writer: Writer
  readonly stopping: AbortSignal
  /** Undefined: the client is to stop. */
  fencepost(): Promise<Fencepost | undefined>
  /** Closes what is open. The next one who asks opens anew. */
  close(): Promise<void>
}

/** Strands of each client. The last one is quick. */
export const workers = 3

/** One strand of a client: takes leases, writes under them and gives them back, until it is told to stop. */
export async function work(here: Surroundings, number: number): Promise<void> {
  const { seed, name, leases, ttlMs } = here.settings
  for (let round = 0; !here.stopping.aborted; round += 1) {
    const stream = new Stream(seed, `client ${name} worker ${number} round ${round}`)
    const plan =
      number < workers - 1 ? drawRound(stream, leases, ttlMs) : drawQuickRound(stream, quickLease, ttlMs)
    // oxlint-disable-next-line no-await-in-loop -- Round after round.
    await playRound(here, plan)
    // oxlint-disable-next-line no-await-in-loop
    if (plan.restMs > 0) await sleep(plan.restMs)
  }
}

async function playRound(here: Surroundings, round: Round): Promise<void> {
  const fencepost = await here.fencepost()
  if (fencepost === undefined) return
  const held = await take(here, fencepost, round)
  if (held.length === 0) return
  const writes = round.transactions.map((plan) => {
    const lease = held.find(({ name }) => name === plan.lease)!
    return () => here.writer.write(lease, plan)
  })
  // oxlint-disable no-await-in-loop -- One after the other, where the round says so.
  if (round.isParallel) await Promise.all(writes.map((write) => write()))
  else for (const write of writes) await write()
  if (round.idleMs > 0) await sleep(round.idleMs)
  await end(here, held, round)
  // A program that has not understood that its term is over.
  const [plan] = round.transactions
  if (plan !== undefined) {
    const former = held.find(({ name }) => name === plan.lease)!
    if (round.isSorry) await here.writer.write(former, { ...plan, way: 'careless' })
    if (round.insists) await insist(here, former, plan)
  }
  // oxlint-enable no-await-in-loop
}

/** Several strands, so that there is hardly a moment at which none of them has a transaction open: only the fence ends that. */
async function insist({ writer, stopping }: Surroundings, lease: Lease, plan: WritePlan): Promise<void> {
  const write = { ...plan, way: 'careless', rows: rowsOf(lease.name), pauseMs: insistentPauseMs } as const
  await Promise.all(
    Array.from({ length: insistentStrands }, async () => {
      // oxlint-disable-next-line no-await-in-loop -- Again and again.
      while (!stopping.aborted && (await writer.write(lease, write)) === 'won');
    }),
  )
}

/** Takes what the round wants, or nothing. */
async function take(here: Surroundings, fencepost: Fencepost, round: Round): Promise<Lease[]> {
  const { recorder } = here
  const { ttlMs: ttl, waitMs: wait, maxHoldMs } = round
  const options = { ttl, ...(maxHoldMs === undefined ? {} : { maxHold: maxHoldMs }) }
  const ops = round.leases.map((lease) => recorder.asked('acquire', lease))
  try {
    const held = await taken(fencepost, round, { ...options, wait, signal: here.stopping })
    if (held === null) {
      for (const op of ops) recorder.answered(op, 'busy')
      return []
    }
    for (const [index, lease] of held.entries()) {
      recorder.answered(ops[index]!, 'won', { token: lease.token })
      recorder.watch(lease)
    }
    at('after acquire')
    return held
  } catch (error) {
    const { outcome, code } = outcomeOf(error)
    for (const op of ops) recorder.answered(op, outcome, { code })
    // A server that is down says no at once: whoever asks on without a pause does nothing else.
    if (code !== 'NOT_ACQUIRED') await sleep(50)
    return []
  }
}

async function taken(
  fencepost: Fencepost,
  { leases, way }: Round,
  options: AcquireOptions,
): Promise<Lease[] | null> {
  const { wait: _wait, signal: _signal, ...trying } = options
  switch (way) {
    case 'acquire':
      return [await fencepost.acquire(leases[0]!, options)]
    case 'try': {
      const lease = await fencepost.tryAcquire(leases[0]!, trying)
      return lease === null ? null : [lease]
    }
    case 'all':
      return [...(await fencepost.acquireAll(leases, options))]
  }
}

async function end(here: Surroundings, held: readonly Lease[], round: Round): Promise<void> {
  switch (round.ending) {
    case 'close':
      return here.close()
    case 'let expire':
      // Nobody waits for it: it is let go.
      for (const lease of held) void lease.letExpire()
      return
    case 'hand over':
    case 'release':
      await Promise.all(held.map((lease) => giveBack(here.recorder, lease, round.ending === 'hand over')))
  }
}

async function giveBack(recorder: Recorder, lease: Lease, handsOver: boolean): Promise<void> {
  const op = recorder.asked('release', lease.name, { token: lease.token })
  const outcome = await (handsOver ? lease.handOver() : lease.release())
  recorder.sample()
  const told = outcome === 'unknown' ? 'unknown' : outcome === 'not-held' ? 'lost' : 'won'
  recorder.answered(op, told, { token: lease.token, code: outcome })
}

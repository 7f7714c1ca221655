import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

interface Reading {
  readonly wallMs: number
  readonly fineMs: number
  readonly hrMs: number
  readonly fencepostMs: number
  readonly trueMs: number
}

const clock = new URL('../../torture/client/clock.ts', import.meta.url).href
const fencepostClock = new URL('../../src/clock.ts', import.meta.url).href
/** All at one moment: once more where the process was kept waiting in between. */
const read = `(() => {
  for (;;) {
    const startedUs = trueUs()
    const reading = { wallMs: Date.now(), fineMs: performance.now(), hrMs: Number(process.hrtime.bigint()) / 1e6,
      fencepostMs: systemClock.monotonicMs(), trueMs: trueUs() / 1000 }
    if (trueUs() - startedUs < 1000) return reading
  }
})()`

/** What each clock of a process has gone on by: while its clocks are set, and it is busy for so long. */
async function elapsed(set: string, forMs: number): Promise<Reading> {
  const program = `
    import { setClock, trueUs } from '${clock}'
    import { systemClock } from '${fencepostClock}'
    const from = ${read}
    ${set}
    const until = trueUs() + ${forMs} * 1000
    while (trueUs() < until);
    const to = ${read}
    console.log(JSON.stringify(Object.fromEntries(Object.keys(from).map((key) => [key, to[key] - from[key]]))))`
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', program])
  return JSON.parse(stdout) as Reading
}

test('a clock that is not touched tells the time', async () => {
  const { wallMs, fineMs, hrMs, trueMs } = await elapsed('', 50)
  for (const each of [wallMs, fineMs, hrMs]) expect(Math.abs(each - trueMs)).toBeLessThan(10)
})

test('a wall clock that is set jumps, and the monotonic clocks do not', async () => {
  const { wallMs, fineMs, hrMs, trueMs } = await elapsed('setClock(60_000, 1)', 50)
  expect(Math.abs(wallMs - trueMs - 60_000)).toBeLessThan(10)
  for (const each of [fineMs, hrMs]) expect(Math.abs(each - trueMs)).toBeLessThan(10)
})

test('clocks that run fast do so all together, also for fencepost', async () => {
  const { wallMs, fineMs, hrMs, fencepostMs, trueMs } = await elapsed('setClock(0, 2)', 100)
  expect(trueMs).toBeGreaterThanOrEqual(100)
  for (const each of [wallMs, fineMs, hrMs, fencepostMs]) expect(each).toBeGreaterThan(190)
})

test('what was gained stays when the clocks run right again: no monotonic clock goes back', async () => {
  const { fineMs, trueMs } = await elapsed(
    'setClock(0, 3); const half = trueUs() + 50_000; while (trueUs() < half); setClock(0, 1)',
    50,
  )
  // At each end the true time is told to a millisecond.
  expect(fineMs - trueMs).toBeGreaterThanOrEqual(98)
})

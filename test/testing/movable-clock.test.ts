import { expect, test } from 'vitest'
import { MovableClock } from '../../src/testing/movable-clock.ts'

test('a clock that is moved runs what is due, in order, and nothing else', async () => {
  const clock = new MovableClock()
  const ran: string[] = []
  clock.after(20_000, () => ran.push('second'))
  clock.after(10_000, () => {
    ran.push('first')
    cancelThird()
    clock.after(1000, () => ran.push('set off later'))
  })
  const cancelThird = clock.after(25_000, () => ran.push('third'))
  clock.after(40_000, () => ran.push('not yet'))
  const [monotonic, wall] = [clock.monotonicMs(), clock.wallMs()]
  await clock.move(9000)
  expect(ran).toEqual([])
  await clock.move(21_000)
  expect(ran).toEqual(['first', 'second'])
  expect(clock.monotonicMs() - monotonic).toBeGreaterThanOrEqual(30_000)
  expect(clock.wallMs() - wall).toBeGreaterThanOrEqual(29_990)
  await clock.move(5000)
  expect(ran).toEqual(['first', 'second', 'set off later'])
  await clock.move(5000)
  expect(ran).toEqual(['first', 'second', 'set off later', 'not yet'])
})

test('what is left of a delay when the clock was moved passes by itself', async () => {
  const clock = new MovableClock()
  const ran = new Promise<void>((settle) => clock.after(60_050, settle))
  await clock.move(60_000)
  await expect(ran).resolves.toBeUndefined()
})

test('what waits is told the new time already while the first timer runs', async () => {
  const clock = new MovableClock()
  const before = clock.monotonicMs()
  const seen = new Promise<number>((settle) => clock.after(1000, () => settle(clock.monotonicMs() - before)))
  await clock.move(60_000)
  expect(await seen).toBeGreaterThanOrEqual(60_000)
})

import { describe, expect, test } from 'vitest'
import { drawRound } from '../../torture/client/round.ts'
import { clientFaults } from '../../torture/faults/kinds.ts'
import { serverFaults } from '../../torture/faults/server.ts'
import { controls } from '../../torture/controls/controls.ts'
import { type TortureOptions, UsageError, readOptions } from '../../torture/run/options.ts'
import { type Planned, planInTurn, planOverlapping } from '../../torture/run/plan.ts'
import { Stream } from '../../torture/run/stream.ts'

const told = (plan: readonly Planned[]): unknown[] =>
  plan.map(({ kind, atMs, lastsMs, stream }) => [kind.name, atMs, lastsMs, stream])

describe('a seed', () => {
  test('gives the same plan each time: which fault, when, for how long', () => {
    expect(told(planOverlapping('s', clientFaults, 60_000))).toEqual(
      told(planOverlapping('s', clientFaults, 60_000)),
    )
    expect(told(planInTurn('s', serverFaults, 60_000))).toEqual(told(planInTurn('s', serverFaults, 60_000)))
  })

  test('gives another plan than another seed', () => {
    expect(told(planOverlapping('s', clientFaults, 60_000))).not.toEqual(
      told(planOverlapping('t', clientFaults, 60_000)),
    )
  })

  test('gives a shorter run the beginning of a longer one', () => {
    const short = told(planOverlapping('s', clientFaults, 10_000))
    expect(told(planOverlapping('s', clientFaults, 60_000)).slice(0, short.length)).toEqual(short)
  })

  test('gives each round of a client its choices, whatever was drawn before', () => {
    const round = (number: number): unknown =>
      drawRound(new Stream('s', `client c1 worker 0 round ${number}`), ['a', 'b', 'c'])
    const third = round(3)
    round(4)
    expect(round(3)).toEqual(third)
    expect(round(4)).not.toEqual(third)
  })
})

test('each fault has its turn before any has its second', () => {
  const names = planOverlapping('s', clientFaults, 120_000).map(({ kind }) => kind.name)
  expect(new Set(names.slice(0, clientFaults.length)).size).toBe(clientFaults.length)
})

test('faults overlap, and those that are about the whole server do not', () => {
  const overlaps = (plan: readonly Planned[]): boolean =>
    plan.some(({ atMs, lastsMs }, place) => (plan[place + 1]?.atMs ?? Infinity) < atMs + lastsMs)
  expect(overlaps(planOverlapping('s', clientFaults, 60_000))).toBe(true)
  expect(overlaps(planInTurn('s', serverFaults, 600_000))).toBe(false)
})

test('no two faults share a name', () => {
  const names = [...clientFaults, ...serverFaults].map(({ name }) => name)
  expect(names).toEqual([...new Set(names)])
})

/** Of a call that runs once. */
function optionsOf(...args: string[]): TortureOptions {
  const options = readOptions(args)
  if (options === 'help') throw new Error('help')
  expect(options).toHaveLength(1)
  return options[0]!
}

describe('arguments', () => {
  test('may name faults, the beginnings of their names, and groups', () => {
    const named = (faults: string): string[] => optionsOf('--faults', faults).faults.map(({ name }) => name)
    expect(named('kill,drop')).toEqual(['kill', 'drop'])
    expect(named('lost-reply')).toHaveLength(4)
    expect(named('pause')).toContain('pause-after-commit-was-sent')
    expect(named('clock')).toEqual(['clock-off', 'clock-steps', 'clock-fast', 'clock-slow'])
    expect(named('all')).toHaveLength(clientFaults.length + serverFaults.length)
    expect(named('none')).toEqual([])
  })

  test('that are left out make a seed of their own', () => {
    expect(optionsOf().seed).not.toBe(optionsOf().seed)
  })

  test('ask for one control, or for a run of each', () => {
    expect(optionsOf('--control', 'release-without-token').control?.name).toBe('release-without-token')
    const all = readOptions(['--control', 'all', '--seed', '7'])
    expect(all).toHaveLength(controls.length)
    expect(all).toMatchObject(controls.map((control) => ({ seed: '7', control: { name: control.name } })))
  })

  test.each([
    [['--seconds', '0'], 'seconds', /--seconds takes a whole number from 1 to 86400, not "0"/],
    [['--seconds', '1.5'], 'seconds', /not "1\.5"/],
    [['--seed', 'a b'], 'seed', /--seed takes 1 to 64 letters.*not "a b"/],
    [['--seed', ''], 'seed', /not ""/],
    [['--clients', '33'], 'clients', /from 1 to 32, not "33"/],
    [['--leases', 'many'], 'leases', /from 1 to 64, not "many"/],
    [['--ttl', '10'], 'ttl', /from 200 to 60000, not "10"/],
    [['--faults', 'kill,nonsense'], 'faults', /knows no "nonsense".*kill, block/],
    [['--control', 'nonsense'], 'control', /knows no "nonsense".*fence-without-lock/],
    [['--nonsense'], 'arguments', /--nonsense.*--help/],
    [['nonsense'], 'arguments', /nonsense.*--help/],
  ])('%j are refused with what is wrong and the way out', (args, option, message) => {
    expect(() => readOptions(args)).toThrow(UsageError)
    expect(() => readOptions(args)).toThrow(
      expect.objectContaining({ option, message: expect.stringMatching(message) }),
    )
  })
})

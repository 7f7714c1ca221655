import { randomBytes } from 'node:crypto'
import { parseArgs } from 'node:util'
import type { Control } from '../controls/control.ts'
import { controls } from '../controls/controls.ts'
import type { FaultKind } from '../faults/fault.ts'
import { clientFaults } from '../faults/kinds.ts'
import { serverFaults } from '../faults/server.ts'

export interface TortureOptions {
  readonly seconds: number
  readonly seed: string
  readonly faults: readonly FaultKind[]
  /** As they were asked for. */
  readonly faultNames: string
  /** How many of the clients reach the server through PgBouncer. */
  readonly pooler: 'none' | 'some' | 'all'
  readonly clients: number
  readonly leases: number
  /** Of every lease; undefined: a mix of short ones. */
  readonly ttlMs: number | undefined
  readonly liveness: boolean
  readonly control: Control | undefined
  readonly report: string | undefined
  readonly keep: string | undefined
}

/** An argument that is refused before anything has been started. */
export class UsageError extends Error {
  readonly option: string

  constructor(option: string, message: string) {
    super(message)
    this.name = 'UsageError'
    this.option = option
  }
}

/** Everything that can be done on purpose. `pooler` is no event but a way that some of the clients take. */
const groups: Readonly<Record<string, readonly string[]>> = {
  process: clientFaults.filter(({ name }) => /^(pause|kill|block|dawdle)/.test(name)).map(({ name }) => name),
  network: clientFaults
    .filter(({ name }) => /^(drop|delay|one-way|reset|black-hole|lost-reply)/.test(name))
    .map(({ name }) => name),
  clock: clientFaults.filter(({ name }) => name.startsWith('clock')).map(({ name }) => name),
  server: serverFaults.map(({ name }) => name),
  pooler: ['pooler'],
}
const all = Object.values(groups).flat()

export const usage = `npm run torture -- [OPTIONS]

Tries to break fencepost on a PostgreSQL of its own, and judges what has come of it.

  --seconds N     how long: 1 to 86400, default 60
  --seed S        what is done, to whom and when comes from it: 1 to 64 letters, digits,
                  "-", "_", "."; default: a new one
  --faults A,B    what is done on purpose, default "all": names, beginnings of names ("pause"
                  is also "pause-after-begin"), groups, or "none":
${Object.entries(groups)
  .map(([group, names]) => `                    ${group.padEnd(9)} ${wrapped(names, 68, 30)}`)
  .join('\n')}
  --clients N     client processes, 1 to 32, default 5
  --leases N      leases that they wait for, 1 to 64, default 5; there is one more that
                  nobody waits for
  --ttl MS        the TTL of every lease, 200 to 60000; default: a mix of 300 to 2000
  --liveness      asks whether everything gets going again: in the second half there are no
                  faults, or one that stays
  --control NAME  takes a safeguard out first, with the faults that show it unless --faults
                  names others; exits with 0 when it is found out, 1 when it is not:
${indented(controls.map(({ name }) => name))}
                  "all": each of them, one after the other
  --report FILE   writes what has come of it as JSON
  --keep DIR      puts histories and logs there; default: only when something was found, to a
                  folder that is named
  --help          shows this

Exit code: 0 nothing was found, 1 something was, 2 wrong arguments, 130 interrupted.
The seed gives the plan of the faults and what each client chooses. Which process runs when is up
to the machine, so a failure may take several runs of its seed to show again.`

function indented(names: readonly string[]): string {
  return `${' '.repeat(20)}${wrapped(names, 78, 20)}`
}

/** One for each run: more than one only where all controls are asked for. */
export function readOptions(args: readonly string[]): readonly TortureOptions[] | 'help' {
  const values = parsed(args)
  if (values.help === true) return 'help'
  if (values.control === 'all') return controls.map((control) => optionsOf(values, control))
  return [optionsOf(values, values.control === undefined ? undefined : namedControl(values.control))]
}

function optionsOf(values: ReturnType<typeof parsed>, control: Control | undefined): TortureOptions {
  const provoked = control?.provocation
  const faultNames = values.faults ?? (provoked === undefined ? 'all' : provoked.faults.join(',') || 'none')
  const { faults, pooler } = chosenFaults(faultNames)
  return {
    seconds: whole('seconds', values.seconds ?? String(provoked?.seconds ?? 60), 1, 86_400),
    seed: checkedSeed(values.seed ?? randomBytes(4).toString('hex')),
    faults,
    faultNames,
    pooler: provoked?.pooler === true ? 'all' : pooler ? 'some' : 'none',
    clients: whole('clients', values.clients ?? String(provoked?.clients ?? 5), 1, 32),
    leases: whole('leases', values.leases ?? String(provoked?.leases ?? 5), 1, 64),
    ttlMs: values.ttl === undefined ? provoked?.ttlMs : whole('ttl', values.ttl, 200, 60_000),
    liveness: values.liveness ?? control?.mode === 'liveness',
    control,
    report: values.report,
    keep: values.keep,
  }
}

function parsed(args: readonly string[]) {
  const text = { type: 'string' } as const
  const flag = { type: 'boolean' } as const
  try {
    return parseArgs({
      args: [...args],
      options: {
        ...{ seconds: text, seed: text, faults: text, clients: text, leases: text, ttl: text },
        ...{ liveness: flag, control: text, report: text, keep: text, help: flag },
      },
    }).values
  } catch (error) {
    throw new UsageError(
      'arguments',
      `${(error as Error).message.replace(/\.?$/, '.')} "--help" shows them all.`,
    )
  }
}

function whole(option: string, text: string, least: number, most: number): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= least && value <= most) return value
  throw new UsageError(
    option,
    `--${option} takes a whole number from ${least} to ${most}, not "${text}". Leave it out for the default.`,
  )
}

function checkedSeed(seed: string): string {
  if (/^[\w.-]{1,64}$/.test(seed)) return seed
  throw new UsageError(
    'seed',
    `--seed takes 1 to 64 letters, digits, "-", "_" or ".", not "${seed}". Leave it out for a new one.`,
  )
}

function namedControl(name: string): Control {
  const control = controls.find((each) => each.name === name)
  if (control !== undefined) return control
  const names = controls.map((each) => each.name).join(', ')
  throw new UsageError('control', `--control knows no "${name}". There are ${names}, and "all".`)
}

function chosenFaults(text: string): { faults: FaultKind[]; pooler: boolean } {
  const names = new Set(
    text
      .split(',')
      .map((word) => word.trim())
      .flatMap((word) => namesOf(word)),
  )
  return {
    faults: [...clientFaults, ...serverFaults].filter(({ name }) => names.has(name)),
    pooler: names.has('pooler'),
  }
}

function namesOf(word: string): readonly string[] {
  if (word === 'all') return all
  if (word === 'none') return []
  const group = Object.hasOwn(groups, word) ? groups[word] : undefined
  const names = group ?? all.filter((name) => name === word || name.startsWith(`${word}-`))
  if (names.length > 0) return names
  throw new UsageError(
    'faults',
    `--faults knows no "${word}". It takes names with commas between them: ${all.join(', ')}; or the groups ` +
      `${Object.keys(groups).join(', ')}, all and none.`,
  )
}

function wrapped(words: readonly string[], width: number, indent: number): string {
  const lines = ['']
  for (const word of words) {
    const line = lines.at(-1)!
    const longer = line === '' ? word : `${line}, ${word}`
    if (longer.length > width) lines.push(word)
    else lines[lines.length - 1] = longer
  }
  return lines.join(`,\n${' '.repeat(indent)}`)
}

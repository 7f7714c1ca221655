import { execFile } from 'node:child_process'
import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { canonicalSet, quint, type Value } from './compiled-model.ts'
import type { Term, Tx, World } from './world.ts'

/** One step of the model: what was done, with what, and the state after it. */
export interface Step {
  readonly action: string
  readonly picks: Picks
  readonly world: World
}

/** What was chosen on the way to an action: server, holder, lease, term and transaction. */
interface Picks {
  readonly s?: number
  readonly h?: number
  readonly l?: number
  readonly isHeard?: boolean
  readonly t?: Term
  readonly x?: Tx
}

export interface Simulating {
  readonly file: string
  /** The module to be simulated. */
  readonly main: string
  readonly step: string
  readonly traces: number
  readonly steps: number
  readonly seed: number
}

/** What Quint's own simulator does at random. The first step of a trace is `init`. */
export async function simulate({
  file,
  main,
  step,
  traces,
  steps,
  seed,
}: Simulating): Promise<readonly (readonly Step[])[]> {
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-spec-'))
  try {
    await promisify(execFile)(process.execPath, [
      ...[quint, 'run', '--backend=typescript', '--mbt', '--verbosity=0', `--main=${main}`, `--step=${step}`],
      ...[`--max-samples=${traces}`, `--n-traces=${traces}`, `--max-steps=${steps}`, `--seed=${seed}`],
      ...[`--out-itf=${join(directory, '{seq}.itf.json')}`, file],
    ])
    const files = (await readdir(directory)).toSorted()
    return await Promise.all(files.map(async (name) => read(await readFile(join(directory, name), 'utf8'))))
  } finally {
    await rm(directory, { recursive: true })
  }
}

/** A trace in the Informal Trace Format. */
function read(json: string): readonly Step[] {
  const { vars, states } = JSON.parse(json) as {
    readonly vars: readonly string[]
    readonly states: readonly Itf[]
  }
  const variable = vars.find((name) => name === 'w' || name.endsWith('::w'))!
  return states.map((state) => {
    const {
      [variable]: world,
      'mbt::actionTaken': action,
      'mbt::nondetPicks': options,
    } = state as Record<string, Itf>
    const picks = Object.entries(
      options as Record<string, { readonly tag: string; readonly value: Itf }>,
    ).flatMap(([name, { tag, value: picked }]) => (tag === 'Some' ? [[name, value(picked)] as const] : []))
    return {
      action: action as string,
      picks: Object.fromEntries(picks) as Picks,
      world: value(world!) as unknown as World,
    }
  })
}

type Itf = boolean | string | number | readonly Itf[] | { readonly [key: string]: Itf }

/** In the form that compiled-model.ts has. */
function value(itf: Itf): Value {
  if (typeof itf !== 'object') return itf
  if (Array.isArray(itf)) return itf.map(value)
  const {
    '#bigint': integer,
    '#set': set,
    '#map': map,
    '#tup': tuple,
    ...fields
  } = itf as Record<string, Itf>
  if (integer !== undefined) return Number(integer)
  if (set !== undefined) return canonicalSet((set as readonly Itf[]).map(value))
  if (tuple !== undefined) return (tuple as readonly Itf[]).map(value)
  if (map !== undefined) {
    return Object.fromEntries(
      (map as readonly (readonly [Itf, Itf])[]).map(([key, of]) => [value(key) as number, value(of)]),
    )
  }
  const names = Object.keys(fields).toSorted()
  return Object.fromEntries(names.map((name) => [name, value(fields[name]!)]))
}

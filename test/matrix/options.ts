import { parseArgs } from 'node:util'

const postgresVersions = ['15', '16', '17', '18'] as const
const nodeVersions = ['22', '24', '26'] as const
type PostgresVersion = (typeof postgresVersions)[number]
export type NodeVersion = (typeof nodeVersions)[number]

export interface Pair {
  readonly postgres: PostgresVersion
  readonly node: NodeVersion
}

export interface MatrixOptions {
  readonly pairs: readonly Pair[]
  /** As vitest takes them; all when there are none. */
  readonly tests: readonly string[]
}

export const usage = `usage: npm run matrix -- [--postgres ${postgresVersions.join(',')}] [--node ${nodeVersions.join(',')}] [--tests PATH…]

Runs the tests on each pair of the versions named. With one kind of version named, the other is what fencepost is developed
with: PostgreSQL 18, Node 24. With none, every PostgreSQL on Node 24, and every Node on PostgreSQL 18.`

/** What was asked for, or what is wrong with it; empty: help was asked for. */
export function readOptions(args: readonly string[]): MatrixOptions | string {
  let values: { postgres?: string; node?: string; tests?: string[] }
  let positionals: string[]
  try {
    if (args.includes('--help')) return ''
    ;({ values, positionals } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        postgres: { type: 'string' },
        node: { type: 'string' },
        tests: { type: 'string', multiple: true },
      },
    }))
  } catch (error) {
    return (error as Error).message
  }
  const postgres = listed('PostgreSQL', values.postgres, postgresVersions)
  const node = listed('Node', values.node, nodeVersions)
  if (typeof postgres === 'string') return postgres
  if (typeof node === 'string') return node
  if (positionals.length > 0 && values.tests === undefined) return `what is "${positionals[0]}"?`
  return { pairs: pairsOf(postgres, node), tests: [...(values.tests ?? []), ...positionals] }
}

function pairsOf(
  postgres: readonly PostgresVersion[] | undefined,
  node: readonly NodeVersion[] | undefined,
): Pair[] {
  if (postgres === undefined && node === undefined) {
    return [
      ...pairsOf(postgresVersions, undefined),
      ...pairsOf(
        undefined,
        nodeVersions.filter((version) => version !== '24'),
      ),
    ]
  }
  return (postgres ?? (['18'] as const)).flatMap((each) =>
    (node ?? (['24'] as const)).map((other) => ({ postgres: each, node: other })),
  )
}

function listed<Version extends string>(
  what: string,
  given: string | undefined,
  known: readonly Version[],
): readonly Version[] | string | undefined {
  if (given === undefined) return undefined
  const names = given.split(',')
  const unknown = names.find((name) => !known.includes(name as Version))
  if (unknown !== undefined) return `${what} "${unknown}" is not in the matrix: ${known.join(', ')}`
  return names as Version[]
}

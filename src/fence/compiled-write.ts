import type { CompiledQuery, Kysely } from 'kysely'
import type { AnyTable } from './guarded-table.ts'

interface Compilable {
  compile(): { readonly sql: string; readonly parameters: readonly unknown[] }
}

interface Plan {
  readonly sql: string
  readonly query: CompiledQuery['query']
  /** For each parameter where its value is found, or what it always is. */
  readonly parameters: readonly ({ readonly at: number } | { readonly always: unknown })[]
}

const plansKept = 200

/** Plugins that change names, and never look at a value. */
const renaming = new Set(['CamelCasePlugin', 'WithSchemaPlugin'])

let queries = 0

/**
 * The texts of writes, by their shape: to build a query and to compile it costs more than to send it, and all that differs from one
 * call to the next is the values.
 */
export class CompiledWrites {
  readonly #db: Kysely<AnyTable>
  readonly #plans = new Map<string, Plan | undefined>()

  constructor(db: Kysely<AnyTable>) {
    this.#db = db
  }

  /**
   * The query of a shape with these values and the facts of the fence; undefined where it has to be built, because a value is an
   * expression, or a plugin may look at values. `build` gets a stand-in, which is a string, for each value and then for each fact.
   */
  query(
    rows: Kysely<AnyTable>,
    shape: string,
    values: readonly unknown[],
    facts: readonly string[],
    build: (standIns: readonly string[]) => Compilable,
  ): CompiledQuery<Record<string, unknown>> | undefined {
    if (!values.every(isPlain) || !this.#isKnown(rows)) return undefined
    let plan = this.#plans.get(shape)
    if (plan === undefined && !this.#plans.has(shape)) {
      plan = planOf(values.length, facts.length, build)
      if (this.#plans.size >= plansKept) this.#plans.clear()
      this.#plans.set(shape, plan)
    }
    if (plan === undefined) return undefined
    queries += 1
    const given = [...values, ...facts]
    return {
      sql: plan.sql,
      query: plan.query,
      queryId: { queryId: `fencepost-${queries}` },
      parameters: plan.parameters.map((each) => ('at' in each ? given[each.at] : each.always)),
    }
  }

  /** Whether what is built here means the same there: a transaction may be one of another Kysely, or have plugins of its own. */
  #isKnown(rows: Kysely<AnyTable>): boolean {
    const own = this.#db.getExecutor()
    const executor = rows.getExecutor()
    return (
      executor.adapter === own.adapter &&
      executor.plugins.length === own.plugins.length &&
      executor.plugins.every(
        (plugin, index) => plugin === own.plugins[index] && renaming.has(plugin.constructor.name),
      )
    )
  }
}

/** Undefined where a value does not become a parameter. */
function planOf(
  values: number,
  facts: number,
  build: (standIns: readonly string[]) => Compilable,
): Plan | undefined {
  const standIns = Array.from({ length: values + facts }, (_, index) => `\u0000fencepost ${index}`)
  const { sql, parameters } = build(standIns).compile()
  const known = new Map(standIns.map((standIn, at) => [standIn as unknown, at]))
  // Not every write needs every fact.
  if (standIns.slice(0, values).some((standIn) => !parameters.includes(standIn))) return undefined
  return {
    sql,
    // What Kysely makes of a text.
    query: { kind: 'RawNode', sqlFragments: [sql], parameters: [] },
    parameters: parameters.map((value) => {
      const at = known.get(value)
      return at === undefined ? { always: value } : { at }
    }),
  }
}

/** Whether Kysely makes a parameter of it. */
function isPlain(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return value !== undefined && typeof value !== 'function'
  return !('toOperationNode' in value)
}

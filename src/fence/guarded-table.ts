import type {
  DeleteQueryBuilder,
  Expression,
  ExpressionBuilder,
  InsertQueryBuilder,
  InsertResult,
  Kysely,
  SelectQueryBuilder,
  SqlBool,
  UpdateQueryBuilder,
  UpdateResult,
} from 'kysely'
import { InvalidArgumentError } from '../errors.ts'
import { type Fence, fenceStatement } from './fence.ts'

/** A table as the builders see it here: the caller's types are checked at the door, its real name is passed on. */
export interface AnyTable {
  guarded: Record<string, unknown>
}
export type AnyBuilder = ExpressionBuilder<AnyTable, 'guarded'>
export type Condition = (eb: AnyBuilder) => Expression<SqlBool>

/** Under what a statement writes. */
export interface Guard {
  readonly fence: Fence
  /** The statement carries the fence itself, because it is a transaction of its own. */
  readonly isInline: boolean
  /** Where the statement runs: the caller's Kysely or the fenced transaction. */
  readonly rows: Kysely<AnyTable>
}

/** The marker column of a guarded RETURNING. Without an underscore, so that no naming plugin changes it. */
export const guardColumn = 'fencepostguard' as const

/** Builds the guarded statements for one table; runs none. */
export class GuardedTable {
  readonly name: 'guarded'
  readonly fenceColumn: string
  readonly #key: readonly string[]
  readonly #isOnce: boolean

  constructor(name: string, key: readonly string[], fenceColumn: string, isOnce: boolean) {
    if (key.length === 0) throw new InvalidArgumentError('key', key, 'key must name at least one column')
    this.name = name as 'guarded'
    this.fenceColumn = fenceColumn
    this.#key = key
    this.#isOnce = isOnce
  }

  insert(guard: Guard, rows: readonly object[]): InsertQueryBuilder<AnyTable, 'guarded', InsertResult> {
    return guard.rows
      .insertInto(this.name)
      .values((eb) => rows.map((row, index) => this.#stamped(eb, row, guard, index === 0)))
  }

  update(guard: Guard, patch: object): UpdateQueryBuilder<AnyTable, 'guarded', 'guarded', UpdateResult> {
    this.#assertNotFenceColumn(patch)
    return guard.rows
      .updateTable(this.name)
      .set((eb) => ({ ...patch, [this.fenceColumn]: this.#guardedToken(eb, guard) }))
      .$if(guard.isInline, (query) => query.where(fenceHolds(guard)))
  }

  upsert(guard: Guard, row: object): InsertQueryBuilder<AnyTable, 'guarded', InsertResult> {
    const changed = Object.entries(row)
      .filter(([column, value]) => value !== undefined && !this.#key.includes(column))
      .map(([column]) => column)
    return this.insert(guard, [row]).onConflict((conflict) =>
      conflict.columns([...this.#key]).doUpdateSet((eb) => ({
        ...Object.fromEntries(changed.map((column) => [column, eb.ref(`excluded.${column}`)])),
        [this.fenceColumn]: this.#guardedToken(eb, guard),
      })),
    )
  }

  delete(guard: Guard): DeleteQueryBuilder<AnyTable, 'guarded', Record<typeof guardColumn, unknown>> {
    return guard.rows
      .deleteFrom(this.name)
      .returning((eb) => this.#guardedToken(eb, guard).as(guardColumn))
      .$if(guard.isInline, (query) => query.where(fenceHolds(guard)))
  }

  /** @throws InvalidArgumentError when the key lacks a value for one of its columns. */
  keyIs(key: unknown): Condition {
    const values: Record<string, unknown> =
      typeof key === 'object' && key !== null && this.#key.every((column) => column in key)
        ? (key as Record<string, unknown>)
        : this.#key.length === 1
          ? { [this.#key[0]!]: key }
          : {}
    const missing = this.#key.find((column) => values[column] === undefined || values[column] === null)
    if (missing !== undefined) {
      throw new InvalidArgumentError(
        'key',
        key,
        `key must have a value for column "${missing}" of "${this.name}"`,
      )
    }
    return (eb) =>
      eb.and(this.#key.map((column) => eb(`${this.name}.${column}` as 'guarded.key', '=', values[column])))
  }

  /**
   * The value of the fence column in a guarded write: the token, unless the row carries a newer stamp. It stands where
   * only rows that are being written are evaluated, in their latest version, so one statement tells the three
   * outcomes apart, and no row outside the caller's condition can be taken for a stale one.
   */
  #guardedToken(eb: AnyBuilder, guard: Guard) {
    // A column that lets nulls in has rows that no term has written.
    const stamp = eb.fn.coalesce(eb.ref(`${this.name}.${this.fenceColumn}` as 'guarded.fence'), eb.lit(0))
    return eb
      .case()
      .when(stamp, this.#isOnce ? '<' : '<=', eb.val(guard.fence.term.token.toString()))
      .then(eb.cast(eb.val(guard.fence.term.token.toString()), 'bigint'))
      .else(
        eb.fn('fencepost.refuse_stale', [
          eb.val(guard.fence.term.lease),
          eb.cast(eb.val(guard.fence.term.token.toString()), 'bigint'),
          eb.cast(stamp, 'bigint'),
        ]),
      )
      .end()
  }

  /** The fence is called in the first row of an INSERT alone: once is enough for a statement. */
  #stamped(eb: AnyBuilder, row: object, guard: Guard, isFirst: boolean): Record<string, unknown> {
    this.#assertNotFenceColumn(row)
    const stamp =
      guard.isInline && isFirst
        ? fenceCall(guard)
        : eb.cast(eb.val(guard.fence.term.token.toString()), 'bigint')
    return { ...row, [this.fenceColumn]: stamp }
  }

  #assertNotFenceColumn(values: object): void {
    if (this.fenceColumn in values) {
      throw new InvalidArgumentError(
        this.fenceColumn,
        (values as Record<string, unknown>)[this.fenceColumn],
        `${this.fenceColumn} is written by the repository: leave it out`,
      )
    }
  }
}

/**
 * The fence as a condition that depends on no row: PostgreSQL evaluates it once, before it looks at the first row, and
 * also when no row matches. So no row trigger and no function in the caller's condition can come before it.
 */
function fenceHolds(guard: Guard): Condition {
  return (eb) => eb(fenceCall(guard), 'is not', null)
}

/** The fence as a sub-query. */
export function fenceCall(guard: Guard): SelectQueryBuilder<AnyTable, never, { token: string }> {
  const [lease, token, holderId] = fenceStatement(guard.fence.term).values
  return guard.rows.selectNoFrom((eb) =>
    eb
      .fn<string>('fencepost.fence', [
        eb.cast(eb.val(lease), 'text'),
        eb.cast(eb.val(token), 'bigint'),
        eb.cast(eb.val(holderId), 'uuid'),
      ])
      .as('token'),
  )
}

import type {
  DeleteQueryBuilder,
  Expression,
  ExpressionBuilder,
  InsertQueryBuilder,
  InsertResult,
  QueryCreator,
  SelectQueryBuilder,
  SqlBool,
  UpdateQueryBuilder,
  UpdateResult,
} from 'kysely'
import { InvalidArgumentError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { type Fence, fenceStatement, termsOf } from './fence.ts'

/** A table as the builders see it here: the caller's types are checked at the door, its real name is passed on. */
export interface AnyTable {
  guarded: Record<string, unknown>
}
export type AnyBuilder = ExpressionBuilder<AnyTable, 'guarded'>
export type Condition = (eb: AnyBuilder) => Expression<SqlBool>

/** Where a statement is built: the caller's Kysely, the fenced transaction, or a WITH clause. */
export type Builder = QueryCreator<AnyTable>

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

  insert(
    builder: Builder,
    fence: Fence,
    rows: readonly object[],
  ): InsertQueryBuilder<AnyTable, 'guarded', InsertResult> {
    for (const row of rows) this.assertNotFenceColumn(row)
    return builder
      .insertInto(this.name)
      .values((eb) => rows.map((row) => ({ ...row, [this.fenceColumn]: tokenOf(eb, fence) })))
  }

  update(
    builder: Builder,
    fence: Fence,
    patch: object,
  ): UpdateQueryBuilder<AnyTable, 'guarded', 'guarded', UpdateResult> {
    this.assertNotFenceColumn(patch)
    return builder
      .updateTable(this.name)
      .set((eb) => ({ ...patch, [this.fenceColumn]: this.#guardedToken(eb, fence) }))
  }

  upsert(builder: Builder, fence: Fence, row: object): InsertQueryBuilder<AnyTable, 'guarded', InsertResult> {
    const changed = Object.entries(row)
      .filter(([column, value]) => value !== undefined && !this.#key.includes(column))
      .map(([column]) => column)
    return this.insert(builder, fence, [row]).onConflict((conflict) =>
      conflict.columns([...this.#key]).doUpdateSet((eb) => ({
        ...Object.fromEntries(changed.map((column) => [column, eb.ref(`excluded.${column}`)])),
        [this.fenceColumn]: this.#guardedToken(eb, fence),
      })),
    )
  }

  delete(
    builder: Builder,
    fence: Fence,
  ): DeleteQueryBuilder<AnyTable, 'guarded', Record<typeof guardColumn, unknown>> {
    return builder.deleteFrom(this.name).returning((eb) => this.#guardedToken(eb, fence).as(guardColumn))
  }

  /**
   * What the key's columns are to be, in their order.
   *
   * @throws InvalidArgumentError when the key lacks a value for one of its columns.
   */
  keyValues(key: unknown): unknown[] {
    const named: Record<string, unknown> =
      typeof key === 'object' && key !== null && this.#key.every((column) => column in key)
        ? (key as Record<string, unknown>)
        : this.#key.length === 1
          ? { [this.#key[0]!]: key }
          : {}
    const values = this.#key.map((column) => named[column])
    const missing = values.findIndex((value) => value === undefined || value === null)
    if (missing >= 0) {
      throw new InvalidArgumentError(
        'key',
        key,
        `key must have a value for column "${this.#key[missing]}" of "${this.name}"`,
      )
    }
    return values
  }

  keyIs(values: readonly unknown[]): Condition {
    return (eb) =>
      eb.and(
        this.#key.map((column, index) => eb(`${this.name}.${column}` as 'guarded.key', '=', values[index])),
      )
  }

  /**
   * The value of the fence column in a guarded write: the token, unless the row carries a newer stamp. It stands where
   * only rows that are being written are evaluated, in their latest version, so one statement tells the three
   * outcomes apart, and no row outside the caller's condition can be taken for a stale one.
   */
  #guardedToken(eb: AnyBuilder, fence: Fence) {
    const stamp = eb.ref(`${this.name}.${this.fenceColumn}` as 'guarded.fence')
    // A column that lets nulls in has rows that no term has written: null is not greater than anything.
    return eb
      .case()
      .when(stamp, this.#isOnce ? '>=' : '>', eb.val(fence.term.token.toString()))
      .then(
        eb.fn('fencepost.refuse_stale', [
          eb.val(fence.term.lease),
          tokenOf(eb, fence),
          eb.cast(stamp, 'bigint'),
        ]),
      )
      .else(tokenOf(eb, fence))
      .end()
  }

  /** @throws InvalidArgumentError when the caller would write the fence column. */
  assertNotFenceColumn(values: object): void {
    if (this.fenceColumn in values) {
      throw new InvalidArgumentError(
        this.fenceColumn,
        (values as Record<string, unknown>)[this.fenceColumn],
        `${this.fenceColumn} is written by the repository: leave it out`,
      )
    }
  }
}

function tokenOf(eb: AnyBuilder, fence: Fence) {
  return eb.cast(eb.val(fence.term.token.toString()), 'bigint')
}

/** What a write in a WITH clause is called. Without an underscore, so that no naming plugin changes it. */
export const writeName = 'fencepostwrite' as const

/**
 * The fence as sub-queries that depend on no row, one for each term, for a condition that always holds: `where (…) is not null`. PostgreSQL
 * evaluates it once, before it looks at the first row, and also when there is none. On a SELECT from a write in a WITH
 * clause, that is before the write begins: before the triggers of the table, protected or not, and before any function in
 * the caller's condition.
 */
export function fenceCalls(
  rows: Builder,
  fence: Fence,
): SelectQueryBuilder<AnyTable, never, { token: string }>[] {
  return termsOf(fence).map((term) => fenceCall(rows, term))
}

function fenceCall(rows: Builder, term: Term): SelectQueryBuilder<AnyTable, never, { token: string }> {
  const [lease, token, holderId] = fenceStatement(term).values
  return rows.selectNoFrom((eb) =>
    eb
      .fn<string>('fencepost.fence', [
        eb.cast(eb.val(lease), 'text'),
        eb.cast(eb.val(token), 'bigint'),
        eb.cast(eb.val(holderId), 'uuid'),
      ])
      .as('token'),
  )
}

import type {
  Expression,
  ExpressionBuilder,
  Insertable,
  Kysely,
  Selectable,
  SqlBool,
  Transaction,
  Updateable,
} from 'kysely'
import { sqlStateOf } from '../database/failure.ts'
import { DatabaseError, SequenceMismatchError } from '../errors.ts'
import type { Fence } from './fence.ts'
import type { FencedTransaction } from './fenced-transaction.ts'
import {
  type AnyTable,
  type Condition,
  type Guard,
  GuardedTable,
  fenceCall,
  guardColumn,
} from './guarded-table.ts'
import { repositoryFailure } from './repository-failure.ts'

/** The name of a table's key: one column or several. */
type KeyColumn<DB, TB extends keyof DB> = keyof Selectable<DB[TB]> & string

type IsUnion<T, U = T> = T extends unknown ? ([U] extends [T] ? false : true) : never

/** How one row is named: by its key column's value, or by an object where the key has several columns. */
export type RowKey<DB, TB extends keyof DB, K extends KeyColumn<DB, TB>> =
  IsUnion<K> extends true ? Pick<Selectable<DB[TB]>, K> : Selectable<DB[TB]>[K]

/** A row to insert. The fence column is the repository's to write. */
export type NewRow<DB, TB extends keyof DB, F> = Omit<Insertable<DB[TB]>, F & string>

/** Columns to change. The fence column is the repository's to write. */
export type Patch<DB, TB extends keyof DB, F> = Omit<Updateable<DB[TB]>, F & string>

export interface RepositoryOptions<K extends string> {
  /** The key column, or all columns of a composite key. The table needs a primary key or unique index on them. */
  readonly key: K | readonly K[]
  /**
   * The strict rule: one token never writes the same row twice (`fence_token < token`). For ticks, payouts and imports
   * that must happen once per term. Default false: a term may write its rows again (`<=`).
   */
  readonly once?: boolean | undefined
  /** The token sequence of the leases that guard this table. Terms of another sequence are refused. Default `default`. */
  readonly sequence?: string | undefined
}

/** A table without a column `fence_token` has to name the column that plays its part. */
type FenceColumnOption<F> = [F] extends [never]
  ? { readonly fenceColumn: F }
  : 'fence_token' extends F
    ? { readonly fenceColumn?: F | undefined }
    : { readonly fenceColumn: F }

/**
 * Reads and guarded writes of one table. Every write takes a fence: a lease or a fenced transaction; there is no other
 * write method. It stamps the row with the token, and refuses, with `StaleTermError`, a row that a newer term has
 * stamped. Three outcomes are never mixed: written (the row, or a count), not found (`undefined`, or 0), stale (an
 * error; nothing of the statement or its transaction stays).
 *
 * With a lease, each write is one statement in one round trip, and the statement itself is fenced. With a fenced
 * transaction, it is part of that. The table needs `fence_token bigint not null default 0`.
 *
 * Not guaranteed: stamps are compared in the statement's own row, so a trigger that turns a DELETE into something else
 * and returns null also skips that comparison (not the fence). A deleted row's stamp is gone with the row. A stale term cannot insert it again, because its lease is
 * checked; under two leases that guard the same rows, or in `once` mode, keep the row and mark it instead.
 *
 * @example
 * ```ts
 * import { FencedRepository, type Fence } from 'fencepost'
 *
 * class Accounts extends FencedRepository<Database, 'accounts'> {
 *   settle(fence: Fence, id: number) {
 *     return this.update(fence, id, { status: 'settled' })
 *   }
 * }
 * const accounts = new Accounts(db, 'accounts', { key: 'id' })
 * ```
 */
export class FencedRepository<
  DB,
  TB extends keyof DB & string,
  K extends KeyColumn<DB, TB> = 'id' & KeyColumn<DB, TB>,
  F extends KeyColumn<DB, TB> = 'fence_token' & KeyColumn<DB, TB>,
> {
  /** The caller's own Kysely: borrowed, never destroyed. */
  protected readonly db: Kysely<DB>
  readonly #rows: Kysely<AnyTable>
  readonly #table: GuardedTable
  readonly #sequence: string

  constructor(db: Kysely<DB>, table: TB, options: RepositoryOptions<K> & FenceColumnOption<F>) {
    const key: readonly string[] = typeof options.key === 'string' ? [options.key] : options.key
    this.db = db
    this.#rows = db as unknown as Kysely<AnyTable>
    this.#table = new GuardedTable(table, key, options.fenceColumn ?? 'fence_token', options.once ?? false)
    this.#sequence = options.sequence ?? 'default'
  }

  /** The row, or undefined. A read needs no fence; pass a transaction to read inside it. */
  async find(key: RowKey<DB, TB, K>, tx?: Transaction<DB>): Promise<Selectable<DB[TB]> | undefined> {
    const rows = this.#within(tx)
    const query = rows.selectFrom(this.#table.name).selectAll().where(this.#table.keyIs(key))
    return (await this.#ask(undefined, () => query.executeTakeFirst())) as Selectable<DB[TB]> | undefined
  }

  /** The row, locked against other writers until the transaction ends, or undefined. */
  async findForUpdate(
    tx: FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const query = this.#within(tx)
      .selectFrom(this.#table.name)
      .selectAll()
      .where(this.#table.keyIs(key))
      .forUpdate()
    return (await this.#ask(tx, () => query.executeTakeFirst())) as Selectable<DB[TB]> | undefined
  }

  /** Inserts a row and returns it as it is then. A duplicate key is the database's error, unchanged. */
  async insert(fence: Fence | FencedTransaction<DB>, row: NewRow<DB, TB, F>): Promise<Selectable<DB[TB]>> {
    const [inserted] = await this.insertMany(fence, [row])
    return this.#inserted(inserted)
  }

  /** Inserts rows in one statement and returns them; an empty list does nothing. */
  async insertMany(
    fence: Fence | FencedTransaction<DB>,
    rows: readonly NewRow<DB, TB, F>[],
  ): Promise<Selectable<DB[TB]>[]> {
    const guard = this.#guard(fence)
    if (rows.length === 0) return []
    const query = this.#table.insert(guard, rows).returningAll()
    return (await this.#ask(fence, () => query.execute())) as Selectable<DB[TB]>[]
  }

  /** Changes one row. The row as it is then, or undefined when there is no row of that key. */
  async update(
    fence: Fence | FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
    patch: Patch<DB, TB, F>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const guard = this.#guard(fence)
    const query = this.#table.update(guard, patch).where(this.#table.keyIs(key)).returningAll()
    const row = await this.#ask(fence, () => query.executeTakeFirst())
    if (row === undefined) await this.#checkFence(fence, guard)
    return row as Selectable<DB[TB]> | undefined
  }

  /** Changes every row that matches, and returns how many there were. One stale row refuses them all. */
  async updateWhere(
    fence: Fence | FencedTransaction<DB>,
    where: (eb: ExpressionBuilder<DB, TB>) => Expression<SqlBool>,
    patch: Patch<DB, TB, F>,
  ): Promise<number> {
    const guard = this.#guard(fence)
    const query = this.#table.update(guard, patch).where(where as unknown as Condition)
    // Not execute(): that takes a count which the driver did not give for none.
    const result = await this.#ask(fence, () => guard.rows.executeQuery(query))
    return this.#count(result.numAffectedRows, fence, guard)
  }

  /**
   * Inserts the row, or changes the columns given when its key exists. Returns the row as it is then. The branch that
   * changes is guarded like `update`.
   */
  async upsert(fence: Fence | FencedTransaction<DB>, row: NewRow<DB, TB, F>): Promise<Selectable<DB[TB]>> {
    const guard = this.#guard(fence)
    const query = this.#table.upsert(guard, row).returningAll()
    return this.#inserted(await this.#ask(fence, () => query.executeTakeFirst()))
  }

  /** Deletes one row. The row as it was, or undefined when there is no row of that key. */
  async delete(
    fence: Fence | FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const guard = this.#guard(fence)
    const query = this.#table.delete(guard).where(this.#table.keyIs(key)).returningAll()
    const row = await this.#ask(fence, () => query.executeTakeFirst())
    if (row === undefined) {
      await this.#checkFence(fence, guard)
      return undefined
    }
    const { [guardColumn]: _, ...deleted } = row as Record<string, unknown>
    return deleted as Selectable<DB[TB]>
  }

  /** Deletes every row that matches, and returns how many there were. One stale row refuses them all. */
  async deleteWhere(
    fence: Fence | FencedTransaction<DB>,
    where: (eb: ExpressionBuilder<DB, TB>) => Expression<SqlBool>,
  ): Promise<number> {
    const guard = this.#guard(fence)
    const query = this.#table.delete(guard).where(where as unknown as Condition)
    // The guard stands in RETURNING, so the rows that come back are the count.
    const rows = await this.#ask(fence, () => query.execute())
    return this.#count(BigInt(rows.length), fence, guard)
  }

  #inserted(row: unknown): Selectable<DB[TB]> {
    if (row !== undefined) return row as Selectable<DB[TB]>
    throw new DatabaseError(
      'QUERY_FAILED',
      `the database took the row for "${this.#table.name}" and returned none: a trigger or rule has swallowed it`,
      { cause: undefined },
    )
  }

  #within(tx: unknown): Kysely<AnyTable> {
    return (tx as Kysely<AnyTable> | undefined) ?? this.#rows
  }

  #guard(fence: Fence | FencedTransaction<DB>): Guard {
    const { term } = fence
    if (term.sequence !== this.#sequence) {
      throw new SequenceMismatchError(term.lease, this.#sequence, term.sequence)
    }
    fence.assertHeld?.()
    const isInline = !isFencedTransaction(fence)
    return { fence, isInline, rows: isInline ? this.#rows : this.#within(fence) }
  }

  async #count(count: unknown, fence: Fence | FencedTransaction<DB>, guard: Guard): Promise<number> {
    if (typeof count !== 'bigint') {
      throw new DatabaseError(
        'QUERY_FAILED',
        `the driver did not say how many rows of "${this.#table.name}" were written`,
        {
          cause: undefined,
        },
      )
    }
    if (count === 0n) await this.#checkFence(fence, guard)
    return Number(count)
  }

  /** A condition that is false from the start leaves the fence unevaluated: the term is then asked for on its own. */
  async #checkFence(fence: Fence | FencedTransaction<DB>, guard: Guard): Promise<void> {
    if (!guard.isInline) return
    await this.#ask(fence, () => this.#rows.selectNoFrom(fenceCall(guard).as('token')).execute())
  }

  async #ask<T>(fence: Fence | FencedTransaction<DB> | undefined, query: () => Promise<T>): Promise<T> {
    try {
      return await query()
    } catch (error) {
      throw repositoryFailure(error, {
        term: fence?.term,
        isInline: fence !== undefined && !isFencedTransaction(fence),
        table: this.#table.name,
        fenceColumn: this.#table.fenceColumn,
        sqlState: sqlStateOf(error),
        compiledFenceColumn: () =>
          this.#rows.selectFrom(this.#table.name).select(this.#table.fenceColumn).compile().sql,
      })
    }
  }
}

function isFencedTransaction(fence: object): boolean {
  return 'isTransaction' in fence && fence.isTransaction === true
}

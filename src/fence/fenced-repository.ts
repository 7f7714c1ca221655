import type {
  DeleteQueryBuilder,
  Expression,
  ExpressionBuilder,
  InsertQueryBuilder,
  Insertable,
  Kysely,
  Selectable,
  SqlBool,
  Transaction,
  UpdateQueryBuilder,
  Updateable,
} from 'kysely'
import type { Client } from 'pg'
import { sqlStateOf } from '../database/failure.ts'
import { DatabaseError, InvalidArgumentError, ProtectedError, SequenceMismatchError } from '../errors.ts'
import type { Term } from '../lease/term.ts'
import { withWatchedSession } from './client-watch.ts'
import { CompiledWrites } from './compiled-write.ts'
import { checkName } from '../lease/name.ts'
import { type Fence, fenceCallsOf, termsOf } from './fence.ts'
import { doubtfulCommit, termAtFault } from './fence-failure.ts'
import type { FencedTransaction } from './fenced-transaction.ts'
import {
  type AnyTable,
  type Builder,
  type Condition,
  GuardedTable,
  fenceCalls,
  guardColumn,
  writeName,
} from './guarded-table.ts'
import { countFenced, executeKept } from './own-transaction.ts'
import { type RepositoryStep, repositoryFailure } from './repository-failure.ts'

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
  /**
   * Which leases guard this table: one (`settlement`) or a prefix (`orders/*`); a final `**` stands for a star of the name
   * itself. A fence of another lease is refused, and of a fence by several leases the one that fits gives the token, of
   * several that fit the one with the lowest. Needed for writes under several leases; default: any lease.
   */
  readonly lease?: string | undefined
  /** The token sequence of the leases that guard this table. Terms of another sequence are refused. Default `default`. */
  readonly sequence?: string | undefined
}

/** A table without a column `fence_token` has to name the column that plays its part. */
type FenceColumnOption<F> = [F] extends [never]
  ? { readonly fenceColumn: F }
  : 'fence_token' extends F
    ? {
        /** The column that carries the token: `bigint not null default 0`. Default `fence_token`. */
        readonly fenceColumn?: F | undefined
      }
    : {
        /** The column that carries the token: `bigint not null default 0`. This table has no `fence_token`. */
        readonly fenceColumn: F
      }

/**
 * Reads and guarded writes of one table. Every write takes a fence: a lease or a fenced transaction; there is no other
 * write method. It stamps the row with the token, and refuses, with `StaleTermError`, a row that a newer term has
 * stamped. Three outcomes are never mixed: written (the row, or a count), not found (`undefined`, or 0), stale (an
 * error; nothing of the statement or its transaction stays).
 *
 * With a lease, each write is a fenced transaction by itself, in one round trip. With a fenced transaction, it is part of
 * that. The table needs `fence_token bigint not null default 0`.
 *
 * Not guaranteed: stamps are compared in the statement's own row, so a trigger that turns a DELETE into something else
 * and returns null also skips that comparison (not the fence). Neither is made for rows that a foreign key's cascade
 * changes. A table with DO ALSO rules takes a transaction of its own, of four round trips. A deleted row's stamp is gone with the row. A stale term cannot insert it again, because its lease is
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
  readonly #guard: string | undefined
  readonly #compiled: CompiledWrites

  constructor(db: Kysely<DB>, table: TB, options: RepositoryOptions<K> & FenceColumnOption<F>) {
    const key: readonly string[] = typeof options.key === 'string' ? [options.key] : options.key
    if (db.isTransaction) {
      throw new InvalidArgumentError(
        'db',
        db,
        'db is a transaction: make the repository on the Kysely instance, and pass the fenced transaction to its methods',
      )
    }
    this.db = db
    this.#rows = db as unknown as Kysely<AnyTable>
    this.#table = new GuardedTable(table, key, options.fenceColumn ?? 'fence_token', options.once ?? false)
    this.#compiled = new CompiledWrites(this.#rows)
    this.#sequence = options.sequence ?? 'default'
    this.#guard = options.lease === undefined ? undefined : checkName('lease', options.lease)
  }

  /** The row, or undefined. A read needs no fence; pass a transaction to read inside it. */
  async find(key: RowKey<DB, TB, K>, tx?: Transaction<DB>): Promise<Selectable<DB[TB]> | undefined> {
    const keyIs = this.#table.keyIs(this.#table.keyValues(key))
    const read = (rows: Kysely<AnyTable>): Promise<unknown> =>
      rows.selectFrom(this.#table.name).selectAll().where(keyIs).executeTakeFirst()
    const row = await this.#ask(
      { term: undefined, stage: tx === undefined ? 'reading' : 'in transaction' },
      () =>
        tx === undefined
          ? this.#rows.connection().execute((rows) => withWatchedSession(rows, () => read(rows)))
          : read(this.#within(tx)),
    )
    return row as Selectable<DB[TB]> | undefined
  }

  /** The row, locked against other writers until the transaction ends, or undefined. */
  async findForUpdate(
    tx: FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const query = this.#within(tx)
      .selectFrom(this.#table.name)
      .selectAll()
      .where(this.#table.keyIs(this.#table.keyValues(key)))
      .forUpdate()
    return (await this.#ask({ term: tx.term, stage: 'in transaction' }, () => query.executeTakeFirst())) as
      | Selectable<DB[TB]>
      | undefined
  }

  /** Inserts a row and returns it as it is then. A duplicate key is the database's error, unchanged. */
  async insert(fence: Fence | FencedTransaction<DB>, row: NewRow<DB, TB, F>): Promise<Selectable<DB[TB]>> {
    const under = this.#under(fence)
    const [inserted] = await this.#writeRow(fence, under, this.#insertOf('insert', row))
    return this.#inserted(inserted)
  }

  /** Inserts rows in one statement and returns them; an empty list does nothing. */
  async insertMany(
    fence: Fence | FencedTransaction<DB>,
    rows: readonly NewRow<DB, TB, F>[],
  ): Promise<Selectable<DB[TB]>[]> {
    const under = this.#under(fence)
    if (rows.length === 0) return []
    const insert = (builder: Builder) => this.#table.insert(builder, under, rows).returningAll()
    assertFitsOneStatement(rows, () => insert(this.#rows))
    return (await this.#write(fence, under, insert)) as Selectable<DB[TB]>[]
  }

  /** Changes one row. The row as it is then, or undefined when there is no row of that key. */
  async update(
    fence: Fence | FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
    patch: Patch<DB, TB, F>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const keyValues = this.#table.keyValues(key)
    const under = this.#under(fence)
    this.#table.assertNotFenceColumn(patch)
    const { columns, values } = columnsOf(patch)
    const [row] = await this.#writeRow(fence, under, {
      shape: ['update', ...columns].join('\u0000'),
      values: [...values, ...keyValues],
      build: (given, by) => (builder) =>
        this.#table
          .update(builder, by, rowOf(columns, given))
          .where(this.#table.keyIs(given.slice(columns.length)))
          .returningAll(),
    })
    return row as Selectable<DB[TB]> | undefined
  }

  /** Changes every row that matches, and returns how many there were. One stale row refuses them all. */
  async updateWhere(
    fence: Fence | FencedTransaction<DB>,
    where: (eb: ExpressionBuilder<DB, TB>) => Expression<SqlBool>,
    patch: Patch<DB, TB, F>,
  ): Promise<number> {
    const under = this.#under(fence)
    const update = (builder: Builder) =>
      this.#table.update(builder, under, patch).where(where as unknown as Condition)
    return this.#count(
      fence,
      under,
      async (rows) => {
        // Not execute(): that takes a count which the driver did not give for none.
        const { numAffectedRows } = await rows.executeQuery(update(rows))
        if (numAffectedRows === undefined)
          throw this.#strange('the driver did not say how many rows were written')
        return Number(numAffectedRows)
      },
      (builder) => update(builder).returning((eb) => eb.lit(1).as(guardColumn)),
      // To hand every row to a SELECT only to count it would cost a sixth of the statement's time.
      (rows, client) => countFenced(rows, client, fenceCallsOf(fence, {}), update(rows).compile()),
    )
  }

  /**
   * Inserts the row, or changes the columns given when its key exists. Returns the row as it is then. The branch that
   * changes is guarded like `update`.
   */
  async upsert(fence: Fence | FencedTransaction<DB>, row: NewRow<DB, TB, F>): Promise<Selectable<DB[TB]>> {
    const under = this.#under(fence)
    const [written] = await this.#writeRow(fence, under, this.#insertOf('upsert', row))
    return this.#inserted(written)
  }

  /** Deletes one row. The row as it was, or undefined when there is no row of that key. */
  async delete(
    fence: Fence | FencedTransaction<DB>,
    key: RowKey<DB, TB, K>,
  ): Promise<Selectable<DB[TB]> | undefined> {
    const keyValues = this.#table.keyValues(key)
    const under = this.#under(fence)
    const [row] = await this.#writeRow(fence, under, {
      shape: 'delete',
      values: keyValues,
      build: (given, by) => (builder) =>
        this.#table.delete(builder, by).where(this.#table.keyIs(given)).returningAll(),
    })
    if (row === undefined) return undefined
    const { [guardColumn]: _, ...deleted } = row
    return deleted as Selectable<DB[TB]>
  }

  /** Deletes every row that matches, and returns how many there were. One stale row refuses them all. */
  async deleteWhere(
    fence: Fence | FencedTransaction<DB>,
    where: (eb: ExpressionBuilder<DB, TB>) => Expression<SqlBool>,
  ): Promise<number> {
    const under = this.#under(fence)
    const remove = (builder: Builder) =>
      this.#table.delete(builder, under).where(where as unknown as Condition)
    // The guard stands in RETURNING, so the rows that come back are the count.
    return this.#count(fence, under, async (rows) => (await remove(rows).execute()).length, remove)
  }

  #insertOf(kind: 'insert' | 'upsert', row: object): RowWrite {
    this.#table.assertNotFenceColumn(row)
    const { columns, values } = columnsOf(row)
    return {
      shape: [kind, ...columns].join('\u0000'),
      values,
      build: (given, by) => (builder) => {
        const written = rowOf(columns, given)
        return kind === 'insert'
          ? this.#table.insert(builder, by, [written]).returningAll()
          : this.#table.upsert(builder, by, written).returningAll()
      },
    }
  }

  #inserted(row: unknown): Selectable<DB[TB]> {
    if (row !== undefined) return row as Selectable<DB[TB]>
    throw this.#strange('the database took the row and returned none: a trigger or rule has swallowed it')
  }

  #strange(what: string): DatabaseError {
    return new DatabaseError('QUERY_FAILED', `"${this.#table.name}": ${what}`, { cause: undefined })
  }

  #within(tx: unknown): Kysely<AnyTable> {
    return (tx as Kysely<AnyTable> | undefined) ?? this.#rows
  }

  /** The fence of the lease that guards this table. */
  #under(fence: Fence | FencedTransaction<DB>): Fence {
    fence.assertHeld?.()
    const guard = this.#guard
    const terms = termsOf(fence)
    if (guard === undefined && terms.length > 1) {
      throw new InvalidArgumentError(
        'fence',
        terms.map((term) => term.lease),
        `the fence is of several leases: say which of them guards "${this.#table.name}", with the option "lease" of the repository`,
      )
    }
    const [first, ...others] = guard === undefined ? terms : terms.filter((term) => guards(guard, term.lease))
    if (first === undefined) throw new ProtectedError('WRONG_LEASE', `table ${this.#table.name}`, guard)
    // The lowest of several is older than every later term of any of them, and never refuses one of these.
    const term = others.reduce((low, other) => (other.token < low.token ? other : low), first)
    if (term.sequence !== this.#sequence) {
      throw new SequenceMismatchError(term.lease, this.#sequence, term.sequence)
    }
    return { term }
  }

  /** Runs a guarded statement and returns its rows. */
  #write(fence: Fence | FencedTransaction<DB>, under: Fence, write: GuardedWrite): Promise<AnyRow[]> {
    return this.#run(
      fence,
      under,
      (rows) => write(rows).execute(),
      (rows) => this.#fencedBy(fence, rows, write).execute(),
    )
  }

  /** The same for one row, whose text is built once for each set of columns. */
  #writeRow(
    fence: Fence | FencedTransaction<DB>,
    under: Fence,
    { shape, values, build }: RowWrite,
  ): Promise<AnyRow[]> {
    const { lease, token } = under.term
    const guarding = [lease, token.toString()]
    const count = values.length
    return this.#run(
      fence,
      under,
      async (rows) => {
        const query = this.#compiled.query(rows, shape, values, guarding, (given) =>
          build(given.slice(0, count), { term: termOf(given.slice(count)) })(rows),
        )
        return query === undefined
          ? build(values, under)(rows).execute()
          : (await rows.executeQuery(query)).rows
      },
      async (rows, client) => {
        const terms = termsOf(fence)
        const fencing = terms.flatMap((term) => [term.lease, term.token.toString(), term.holderId])
        const query = this.#compiled.query(
          rows,
          `${terms.length} ${shape}`,
          values,
          [...guarding, ...fencing],
          (given) => {
            const by = { term: termOf(given.slice(count)) }
            const own = terms.map((_, index) => termOf(given.slice(count + 2 + index * 3)))
            return this.#fencedBy({ term: own[0]!, terms: own }, rows, build(given.slice(0, count), by))
          },
        )
        return query === undefined
          ? this.#fencedBy(fence, rows, build(values, under)).execute()
          : (await executeKept(rows, client, query)).rows
      },
    )
  }

  /** A write in one statement with the fence. */
  #fencedBy(fence: Fence, rows: Kysely<AnyTable>, write: GuardedWrite) {
    return rows
      .with(writeName, write)
      .selectFrom(writeName)
      .selectAll()
      .where((eb) => eb.and(fenceCalls(rows, fence).map((call) => eb(call, 'is not', null))))
  }

  /**
   * The number of rows of a guarded statement: as `within` counts them in a transaction, as `after` does where it can be sent after the
   * fence, else as the database does.
   */
  #count(
    fence: Fence | FencedTransaction<DB>,
    under: Fence,
    within: (rows: Kysely<AnyTable>) => Promise<number>,
    write: GuardedWrite,
    after?: (rows: Kysely<AnyTable>, client: Client | undefined) => Promise<number | undefined>,
  ): Promise<number> {
    return this.#run(fence, under, within, async (rows, client) => {
      const known = await after?.(rows, client)
      if (known !== undefined) return known
      const { count } = await rows
        .with(writeName, write)
        .selectFrom(writeName)
        .select((eb) => eb.cast<string>(eb.fn.countAll(), 'text').as('count'))
        .where((eb) => eb.and(fenceCalls(rows, fence).map((call) => eb(call, 'is not', null))))
        .executeTakeFirstOrThrow()
      return Number(count)
    })
  }

  /** In the fenced transaction, or as a transaction of its own that carries the fence: one statement in one round trip. */
  async #run<T>(
    fence: Fence | FencedTransaction<DB>,
    under: Fence,
    within: (rows: Kysely<AnyTable>) => Promise<T>,
    alone: (rows: Kysely<AnyTable>, client: Client | undefined) => Promise<T>,
  ): Promise<T> {
    const { term } = under
    if (isFencedTransaction(fence)) {
      return this.#ask({ term, fence, stage: 'in transaction' }, () => within(this.#within(fence)))
    }
    // An answer that is lost leaves the outcome unknown, a session that cannot be had does not.
    const step: Step = { term, fence, stage: 'connecting' }
    return this.#ask(step, () =>
      this.#rows.connection().execute((rows) =>
        withWatchedSession(rows, async (watch) => {
          step.stage = 'sent'
          step.watch = watch
          const result = await alone(rows, watch.client).catch((error: unknown) => {
            // A write in a WITH clause is not for tables with rules. Nothing was written, so it may be a transaction instead.
            if (sqlStateOf(error) !== '0A000') throw error
            return rows.transaction().execute(async (tx) => {
              // oxlint-disable-next-line no-await-in-loop -- One session, one statement at a time.
              for (const call of fenceCalls(tx, fence)) await tx.selectNoFrom(call.as('token')).execute()
              return within(tx)
            })
          })
          if (watch.isCommitDoubtful) throw doubtfulCommit(term)
          return result
        }),
      ),
    )
  }

  async #ask<T>(step: Step, query: () => Promise<T>): Promise<T> {
    try {
      return await query()
    } catch (error) {
      throw repositoryFailure(error, {
        term: step.fence === undefined ? step.term : termAtFault(error, termsOf(step.fence)),
        stage: step.stage,
        isConnectionLost: step.watch?.isLost,
        table: this.#table.name,
        fenceColumn: this.#table.fenceColumn,
        compiledFenceColumn: () =>
          this.#rows.selectFrom(this.#table.name).select(this.#table.fenceColumn).compile().sql,
      })
    }
  }
}

type AnyRow = Record<string, unknown>

/** Builds a write that returns rows, where it is to run. */
type GuardedWrite = (
  builder: Builder,
) =>
  | InsertQueryBuilder<AnyTable, 'guarded', AnyRow>
  | UpdateQueryBuilder<AnyTable, 'guarded', 'guarded', AnyRow>
  | DeleteQueryBuilder<AnyTable, 'guarded', AnyRow>

/** The write of one row, as its values and what they are put into. Writes of one shape differ in nothing else. */
interface RowWrite {
  readonly shape: string
  readonly values: readonly unknown[]
  readonly build: (values: readonly unknown[], under: Fence) => GuardedWrite
}

/** The columns that have a value: Kysely leaves out those that are undefined. */
function columnsOf(row: object): { columns: string[]; values: unknown[] } {
  const entries = Object.entries(row).filter(([, value]) => value !== undefined)
  return { columns: entries.map(([column]) => column), values: entries.map(([, value]) => value) }
}

function rowOf(columns: readonly string[], values: readonly unknown[]): AnyRow {
  return Object.fromEntries(columns.map((column, index) => [column, values[index]]))
}

/** A term of which only what goes into a statement is known, and that as text. */
function termOf([lease = '', token, holderId = '']: readonly string[]): Term {
  return { lease, token: token as unknown as Term['token'], holderId, sequence: '' }
}

interface Step {
  readonly term: Term | undefined
  readonly fence?: Fence
  stage: RepositoryStep['stage']
  watch?: { readonly isLost: boolean | undefined }
}

/** The protocol counts parameters in 16 bits. More of them fail on the way, where it looks like a broken connection. */
const maxParameters = 65_535

function assertFitsOneStatement(
  rows: readonly object[],
  query: () => { compile(): { readonly parameters: readonly unknown[] } },
): void {
  // Compiling twice is for the few that come near.
  if (rows.length * (Object.keys(rows[0] ?? {}).length + 2) < maxParameters / 2) return
  // The fence itself has three.
  const length = query().compile().parameters.length + 3
  if (length <= maxParameters) return
  throw new InvalidArgumentError(
    'rows',
    rows.length,
    `${rows.length} rows make ${length} parameters, and one statement takes ${maxParameters}: insert them in several calls, in ` +
      'one fenced transaction',
  )
}

/** Whether a guard, a lease or a prefix, fits a lease. */
function guards(guard: string, lease: string): boolean {
  if (guard.endsWith('**')) return lease === guard.slice(0, -1)
  return guard.endsWith('*') ? lease.startsWith(guard.slice(0, -1)) : lease === guard
}

function isFencedTransaction(fence: object): boolean {
  return 'isTransaction' in fence && fence.isTransaction === true
}

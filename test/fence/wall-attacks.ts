import { type Client, Query } from 'pg'
import type { TestDatabase } from '../support/database.ts'
import { refusalOf } from './wall-terms.ts'

/** A way to write, by a client that does not think of fencepost. */
export interface Attack {
  /** With its article, to begin a sentence with. */
  readonly what: string
  /** Writes inside a transaction. Returns the SQLSTATEs of the refusals that it has caught and gone on from. */
  run(session: Client): Promise<string[]>
  /** Default: COMMIT. */
  readonly commit?: (session: Client) => Promise<void>
  /** It has no transaction block around it. */
  readonly isAutocommit?: boolean
  /** It finds nothing to change, so that only the refusal shows that it was looked at. */
  readonly isIdle?: boolean
  /** The first version of PostgreSQL that knows the statement. */
  readonly since?: number
  /** It needs max_prepared_transactions. */
  readonly isTwoPhase?: boolean
}

export const levels = ['read committed', 'repeatable read', 'serializable'] as const

export type Level = (typeof levels)[number]

/**
 * Creates what is attacked, in a schema of its own: three tables that can be protected (account, entry with partitions,
 * asset with an inheriting table), and those from which writes reach them. Rows are stamped 3, new ones with `standard`.
 */
export async function createTarget(database: TestDatabase, schema: string, standard: string): Promise<void> {
  const stamp = `fence_token bigint not null default ${standard}`
  await database.query(`
    create schema ${schema};
    set local search_path = ${schema};
    create table customer (id integer primary key);
    create table account (
      id integer primary key,
      customer_id integer references customer on delete cascade on update cascade,
      balance integer not null,
      ${stamp});
    create table office (id integer primary key);
    create table entry (
      id integer,
      region text,
      amount integer not null,
      ${stamp},
      office_id integer references office on delete cascade,
      primary key (id, region)) partition by list (region);
    create table entry_east partition of entry for values in ('east');
    create table entry_west partition of entry for values in ('west');
    create table garage (id integer primary key);
    create table asset (id integer, price integer not null, ${stamp}, garage_id integer references garage on delete set null);
    create table vehicle (wheels integer) inherits (asset);
    create table incoming (id integer primary key, balance integer not null);
    create table journal (line text not null);
    create view account_view as select id, customer_id, balance from account;

    create table ruled (id integer);
    create rule ruled as on insert to ruled do instead
      insert into account (id, customer_id, balance) values (new.id, 1, 0);
    create function write_on() returns trigger language plpgsql as $$
      begin
        insert into account (id, customer_id, balance) values (new.id, 1, 0);
        return null;
      end $$;
    create table triggering (id integer);
    create trigger triggering after insert on triggering for each row execute function write_on();
    create table triggering_late (id integer);
    create constraint trigger triggering_late after insert on triggering_late deferrable initially deferred
      for each row execute function write_on();

    create function credit() returns void language plpgsql as $$
      begin
        insert into account (id, customer_id, balance) values (10, 1, 10);
        update account set balance = balance + 1;
      end $$;
    create function credit_sql() returns bigint language sql as $$
      update account set balance = balance + 1;
      select count(*) from account;
    $$;
    create function try_credit() returns text language plpgsql as $$
      begin
        perform credit();
        return null;
      exception when others then
        return sqlstate;
      end $$;

    create procedure credit_twice() language plpgsql as $$
      begin
        update account set balance = balance + 1;
        commit;
        update account set balance = balance + 1;
      end $$;

    create function reset() returns void language sql
    set session_replication_role = replica set search_path = ${schema} as $$
      delete from account; delete from entry; delete from asset; delete from incoming; delete from journal;
      delete from customer; delete from office; delete from garage;
      delete from ruled; delete from triggering; delete from triggering_late;
      insert into customer values (1), (2);
      insert into account values (1, 1, 100, 3), (2, 1, 200, 3), (3, 2, 300, 3);
      insert into office values (1), (2);
      insert into entry values (1, 'east', 1, 3, 1), (2, 'east', 2, 3, 2), (3, 'west', 3, 3, 1);
      insert into garage values (1);
      insert into asset values (1, 1, 3, 1);
      insert into vehicle values (2, 2, 3, null, 4);
      insert into incoming values (1, 1000), (20, 2000);
    $$;
    select reset()`)
}

/** The tables of a target that are protected. */
export const targetTables = ['account', 'entry', 'asset']

/** Every row of the protected tables: as text, and with the version of it that the table holds. */
export async function contents(
  database: TestDatabase,
  schema: string,
): Promise<{ rows: string[]; versions: string[] }> {
  const one = (table: string) => `
    select (select relname from pg_class where oid = t.tableoid) || t::text as row, t.xmin::text || t.ctid::text as version
      from ${schema}.${table} t`
  const found = await database.query<{ row: string; version: string }>(
    `select * from (${[...targetTables, 'vehicle'].map(one).join(' union all ')}) x order by row`,
  )
  return { rows: found.map(({ row }) => row), versions: found.map(({ row, version }) => `${version} ${row}`) }
}

/** What `pg` gives to a query that copies. */
interface CopyConnection {
  sendCopyFromChunk(chunk: Buffer): void
  endCopyFrom(): void
}

/** COPY FROM STDIN, which `pg` speaks without offering it. */
class CopyIn extends Query {
  readonly #data: string
  readonly #isReady: Promise<unknown>

  constructor(sql: string, data: string, isReady: Promise<unknown>) {
    super(sql)
    this.#data = data
    this.#isReady = isReady
  }

  handleCopyInResponse(connection: CopyConnection): void {
    connection.sendCopyFromChunk(Buffer.from(this.#data))
    void this.#isReady.then(() => connection.endCopyFrom())
  }
}

/** Copies rows into a table. The last word is said when `isReady` is fulfilled. */
export async function copyIn(
  session: Client,
  sql: string,
  data: string,
  isReady: Promise<unknown> = Promise.resolve(),
): Promise<void> {
  const copy = session.query(new CopyIn(sql, data, isReady))
  await new Promise<void>((resolve, reject) => {
    copy.once('error', reject)
    copy.once('end', () => resolve())
  })
}

/** What a session prepares while its fence is still valid. */
export async function prepareStatements(session: Client): Promise<void> {
  await session.query(`prepare late_insert (integer) as
    insert into account (id, customer_id, balance) values ($1, 1, 0)`)
}

const named = { name: 'late_update', text: 'update account set balance = $1 where id = 1', values: [5] }

function statement(what: string, sql: string, more: Partial<Attack> = {}): Attack {
  return {
    what,
    async run(session) {
      await session.query(sql)
      return []
    },
    ...more,
  }
}

const columns = '(id, customer_id, balance)'
const insert = `insert into account ${columns} values (10, 1, 10), (11, 1, 11)`

let transactions = 0

export const attacks: readonly Attack[] = [
  statement('an INSERT', insert),
  statement('an INSERT … SELECT', `insert into account ${columns} select id + 30, 1, balance from incoming`),
  statement('an UPDATE', 'update account set balance = balance + 1'),
  statement('an UPDATE that finds no row', 'update account set balance = 0 where id = 99', { isIdle: true }),
  statement('an UPDATE … FROM', 'update account a set balance = i.balance from incoming i where i.id = a.id'),
  statement('a DELETE', 'delete from account where id = 1'),
  statement('a DELETE … USING', 'delete from account a using incoming i where i.id = a.id'),
  statement('a TRUNCATE', 'truncate account'),
  statement('a TRUNCATE of an unprotected table by CASCADE', 'truncate customer cascade'),
  {
    what: 'a COPY FROM STDIN',
    async run(session) {
      await copyIn(session, `copy account ${columns} from stdin`, '10\t1\t10\n11\t1\t11\n')
      return []
    },
  },
  statement('a COPY FROM PROGRAM', `copy account ${columns} from program 'echo 10,1,10' with (format csv)`),
  statement(
    'a MERGE that updates and inserts',
    `merge into account a using incoming i on a.id = i.id
       when matched then update set balance = i.balance
       when not matched then insert ${columns} values (i.id, 1, i.balance)`,
    { since: 150_000 },
  ),
  statement(
    'a MERGE that deletes',
    'merge into account a using incoming i on a.id = i.id when matched then delete',
    { since: 150_000 },
  ),
  statement(
    'an ON CONFLICT DO UPDATE that inserts',
    `insert into account ${columns} values (10, 1, 10) on conflict (id) do update set balance = excluded.balance`,
  ),
  statement(
    'an ON CONFLICT DO UPDATE that updates',
    `insert into account ${columns} values (1, 1, 10) on conflict (id) do update set balance = excluded.balance`,
  ),
  statement(
    'an ON CONFLICT DO NOTHING',
    `insert into account ${columns} values (1, 1, 10), (10, 1, 10) on conflict (id) do nothing`,
  ),
  statement(
    'an ON CONFLICT DO NOTHING that does nothing',
    `insert into account ${columns} values (1, 1, 10) on conflict (id) do nothing`,
    { isIdle: true },
  ),
  statement(
    'a writable CTE',
    'with gone as (delete from account where id = 1 returning *) select count(*) from gone',
  ),
  statement(
    'a writable CTE that nothing reads from',
    'with changed as (update account set balance = 0) select 1',
  ),
  statement(
    'a writable CTE that moves a row to another table',
    `with gone as (delete from account where id = 1 returning balance)
     insert into entry (id, region, amount) select 10, 'east', balance from gone`,
  ),
  statement("a foreign key's ON DELETE CASCADE", 'delete from customer where id = 1'),
  statement("a foreign key's ON DELETE CASCADE to a partitioned table", 'delete from office where id = 1'),
  statement("a foreign key's ON DELETE SET NULL", 'delete from garage'),
  statement("a foreign key's ON UPDATE CASCADE", 'update customer set id = id + 100'),
  statement(
    'an INSERT into a partitioned table',
    `insert into entry (id, region, amount) values (10, 'east', 10), (11, 'west', 11)`,
  ),
  statement(
    'an INSERT into a partition',
    `insert into entry_west (id, region, amount) values (10, 'west', 10)`,
  ),
  statement('an UPDATE of a partition', 'update entry_east set amount = amount + 1'),
  statement('a DELETE from a partition', 'delete from entry_east'),
  statement('a TRUNCATE of a partition', 'truncate entry_west'),
  {
    what: 'a COPY into a partition',
    async run(session) {
      await copyIn(session, 'copy entry_east (id, region, amount) from stdin', '10\teast\t10\n')
      return []
    },
  },
  statement(
    'an UPDATE that moves a row to another partition',
    `update entry set region = 'west' where region = 'east'`,
  ),
  statement('a TRUNCATE of a partitioned table', 'truncate entry'),
  statement(
    'an INSERT into an inheriting table',
    'insert into vehicle (id, price, wheels) values (10, 10, 2)',
  ),
  statement('an UPDATE of an inheriting table', 'update vehicle set price = price + 1'),
  statement('an UPDATE of a table that another inherits from', 'update asset set price = price + 1'),
  statement('an EXECUTE of a statement that was prepared under a valid fence', 'execute late_insert(10)'),
  {
    what: "a driver's named statement that was prepared under a valid fence",
    async run(session) {
      await session.query(named)
      return []
    },
  },
  statement('a function in PL/pgSQL', 'select credit()'),
  statement('a function in SQL', 'select credit_sql()'),
  statement('a DO block', `do $$ begin delete from account where id = 2; perform credit(); end $$`),
  {
    what: 'a function that swallows the refusal',
    async run(session) {
      const { rows } = await session.query<{ refusal: string | null }>('select try_credit() as refusal')
      await session.query(`insert into journal values ('went on')`)
      return rows[0]!.refusal === null ? [] : [rows[0]!.refusal]
    },
  },
  {
    what: 'a savepoint that catches the refusal and goes on',
    async run(session) {
      const caught: string[] = []
      for (const sql of [insert, 'update account set balance = 0', 'delete from entry', 'truncate asset']) {
        await session.query('savepoint before')
        const refusal = await refusalOf(session.query(sql))
        if (refusal === undefined) continue
        await session.query('rollback to before')
        caught.push(refusal)
      }
      await session.query(`insert into journal values ('went on')`)
      return caught
    },
  },
  statement('an INSERT into a view', `insert into account_view values (10, 1, 10)`),
  statement('a rule of an unprotected table', 'insert into ruled values (10)'),
  statement('a trigger of an unprotected table', 'insert into triggering values (10)'),
  statement('a deferred trigger of an unprotected table', 'insert into triggering_late values (10)'),
  statement(
    'an UPDATE at a cursor',
    `declare c cursor for select * from account where id = 1 for update;
     fetch c;
     update account set balance = 0 where current of c`,
  ),
  statement('an EXPLAIN ANALYZE', 'explain (analyze, costs off, timing off) delete from account'),
  statement('a statement of its own transaction', insert, { isAutocommit: true }),
  statement('a message of two statements', `${insert}; update account set balance = 0`, {
    isAutocommit: true,
  }),
  statement('a procedure that commits in its middle', 'call credit_twice()', { isAutocommit: true }),
  {
    what: 'a transaction that is prepared and committed in two phases',
    isTwoPhase: true,
    async run(session) {
      await session.query(insert)
      return []
    },
    async commit(session) {
      transactions += 1
      const id = `wall-${process.pid}-${transactions}`
      await session.query(`prepare transaction '${id}'`)
      await session.query(`commit prepared '${id}'`)
    },
  },
]

import { type Client, type QueryResultRow } from 'pg'
import { ask } from './pair.ts'

/**
 * What each server writes down beside every grant and every fenced write, in the same transaction: so it is kept, replicated and lost with
 * them. The position is drawn while the row of the lease is locked (by the grant for itself, by the fence for all writes of a term), so
 * within one lease it follows the order of the commits. Who wrote is what the fence has checked, not what the client says.
 */
const tables = `
  create schema lab;
  create sequence lab.position;
  create table lab.granted (
    position bigint primary key default nextval('lab.position'),
    server integer not null default inet_server_port(),
    lease text not null, token bigint not null, holder_id uuid not null
  );
  create table lab.written (
    position bigint primary key default nextval('lab.position'),
    server integer not null default inet_server_port(),
    lease text not null default split_part(current_setting('fencepost.fence'), ':', 3),
    token bigint not null default split_part(current_setting('fencepost.fence'), ':', 1)::bigint,
    holder_id uuid not null default split_part(current_setting('fencepost.fence'), ':', 2)::uuid,
    write_id text not null
  );
  create function lab.grant_written_down() returns trigger language plpgsql as $$
  begin
    if new.holder_id is not null and new.token > 0 and (tg_op = 'INSERT' or new.token <> old.token) then
      insert into lab.granted (lease, token, holder_id) values (new.name, new.token, new.holder_id);
    end if;
    return null;
  end $$;
  create trigger written_down after insert or update on fencepost.lease
    for each row execute function lab.grant_written_down();
`

export interface Entry {
  readonly position: bigint
  /** The port of the server that it was first written by. */
  readonly server: number
  readonly lease: string
  readonly token: bigint
  readonly holderId: string
}

export interface WriteEntry extends Entry {
  readonly writeId: string
}

/** What one server has, in the order of the positions. */
export interface Ledger {
  readonly granted: readonly Entry[]
  readonly written: readonly WriteEntry[]
}

export async function keepLedger(server: { readonly url: string }): Promise<void> {
  await ask(server, tables)
}

/** Under the fence of the transaction that the client is in. */
export async function writeDown(client: Pick<Client, 'query'>, writeId: string): Promise<void> {
  await client.query('insert into lab.written (write_id) values ($1)', [writeId])
}

export async function readLedger(server: { readonly url: string }): Promise<Ledger> {
  const [granted, written] = await Promise.all([
    ask(server, 'select * from lab.granted order by position'),
    ask(server, 'select * from lab.written order by position'),
  ])
  return {
    granted: granted.map(entryOf),
    written: written.map((row) => ({ ...entryOf(row), writeId: row['write_id'] as string })),
  }
}

function entryOf(row: QueryResultRow): Entry {
  return {
    position: BigInt(row['position'] as string),
    server: row['server'] as number,
    lease: row['lease'] as string,
    token: BigInt(row['token'] as string),
    holderId: row['holder_id'] as string,
  }
}

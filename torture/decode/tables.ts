import type { Client } from 'pg'

/**
 * The tables that the clients write to. `torture.write` is only ever added to, and nothing in it is unique: a write that is committed twice
 * is for the judge to find, not for an index. `torture.row` bears the stamp of the last write.
 */
export async function createTortureTables(client: Client): Promise<void> {
  await client.query(`
    create schema torture;
    create table torture.write (
      lease text not null,
      token bigint not null,
      "row" text not null,
      client text not null,
      op integer not null
    );
    create table torture."row" (
      "row" text primary key,
      lease text not null,
      value bigint not null default 0,
      stamp bigint
    )`)
}

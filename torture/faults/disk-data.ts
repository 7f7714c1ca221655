import { dirname, join } from 'node:path'
import type { Client } from 'pg'
import type { TortureServer } from './fault.ts'
import { inSession, insist } from './nemesis-session.ts'
import { type ServerFault, alone } from './server-fault.ts'
import { SmallDisk } from './small-disk.ts'

const tablespace = 'torture_small'
/** Larger tables stay where they are: to move one would take long. */
const largest = 32 << 20

interface Relation {
  readonly name: string
  readonly kind: 'table' | 'index'
}

/** Tables with their indexes, except for PostgreSQL's own. Those of `tablespace`, or of the database's own when undefined. */
function relations(
  server: TortureServer,
  inTablespace: string | undefined,
): Promise<(Relation & { bytes: number })[]> {
  return insist(server, async (client) => {
    const { rows } = await client.query<Relation & { bytes: number }>(
      `select c.oid::regclass::text as name, case c.relkind when 'r' then 'table' else 'index' end as kind,
              pg_table_size(c.oid)::float8 as bytes
         from pg_class c left join pg_tablespace s on s.oid = c.reltablespace
        where c.relkind in ('r', 'i') and c.relpersistence <> 't' and s.spcname is not distinct from $1
          and c.relnamespace not in ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace, 'information_schema'::regnamespace)`,
      [inTablespace],
    )
    return rows
  })
}

async function move(client: Client, { kind, name }: Relation, to: string): Promise<void> {
  await client.query(`set lock_timeout = '1s'`)
  await client.query(`alter ${kind} if exists ${name} set tablespace ${to}`)
}

/** A table that is in use all the time stays where it is. */
async function moveAway(server: TortureServer, all: readonly Relation[]): Promise<number> {
  let moved = 0
  for (const each of all) {
    // oxlint-disable-next-line no-await-in-loop -- Each waits for a lock, and nobody holds two.
    moved += await inSession(server, (client) => move(client, each, tablespace), 5_000).then(
      () => 1,
      () => 0,
    )
  }
  return moved
}

async function moveBack(server: TortureServer): Promise<void> {
  for (const each of await relations(server, tablespace)) {
    // oxlint-disable-next-line no-await-in-loop
    await insist(server, (client) => move(client, each, 'pg_default'))
  }
  await insist(server, (client) => client.query(`drop tablespace if exists ${tablespace}`))
  // What is replayed after a crash must not look for it.
  await insist(server, (client) => client.query('checkpoint'))
}

/**
 * The tables have no room to grow (53100), while the write-ahead log has: some writes are refused, and those that find room in a page go on.
 */
export const fullDisk: ServerFault = {
  name: 'full-disk',
  lastsMs: [500, 6_000],
  reason: () => SmallDisk.reason(),
  inflict: alone('full-disk', async ({ server }) => {
    const { dataDirectory } = server.embedded
    const small = (await relations(server, undefined)).filter(({ bytes }) => bytes <= largest)
    const bytes = small.reduce((sum, each) => sum + each.bytes, 8 << 20)
    const path = join(dirname(dataDirectory), 'small')
    const disk = await SmallDisk.mount(path, Math.ceil(bytes * 1.5), dataDirectory)
    const heal = async (): Promise<void> => {
      await disk.free()
      await moveBack(server)
      await disk.unmount()
    }
    try {
      await insist(server, (client) => client.query(`create tablespace ${tablespace} location '${path}'`))
      const moved = await moveAway(server, small)
      await disk.fill()
      return { target: `${moved} tables and indexes`, heal }
    } catch (error) {
      await heal()
      throw error
    }
  }),
}

/** Changes of the lease tables while they are in use: every kept plan is void, and exclusive locks come and go. */
import { migrate } from '../../src/database/migrate.ts'
import { between, ownChance, pick } from './chance.ts'
import { inSession, insist, ownSessions, pause } from './nemesis-session.ts'
import { type ServerFault, goingOn } from './server-fault.ts'

interface Table {
  readonly name: string
  /** One that changes, so that an index on it is one more thing to write. */
  readonly column: string
  readonly fillfactor: number
}

const tables: readonly Table[] = [
  { name: 'token_sequence', column: 'last_token', fillfactor: 10 },
  { name: 'holder', column: 'expires_at', fillfactor: 50 },
  { name: 'lease', column: 'token', fillfactor: 70 },
  { name: 'waiter', column: 'since', fillfactor: 100 },
]
const mark = 'torture_mark'
const lockWithinMs = 300

/** A volatile default, `vacuum full` and `cluster` write the table anew. */
function changes({ name, column, fillfactor }: Table): string[] {
  const table = `fencepost.${name}`
  return [
    `alter table ${table} add column if not exists ${mark} integer`,
    `alter table ${table} add column if not exists ${mark} uuid default gen_random_uuid()`,
    `alter table ${table} drop column if exists ${mark}`,
    `create index concurrently if not exists ${name}_${mark} on ${table} (${column})`,
    `drop index if exists fencepost.${name}_${mark}`,
    `alter table ${table} set (fillfactor = ${Math.max(10, fillfactor - 10)})`,
    `vacuum full ${table}`,
    `cluster ${table} using ${name}_pkey`,
    `reindex table ${table}`,
    `reindex table concurrently ${table}`,
    `vacuum (freeze, analyze) ${table}`,
  ]
}

/** An index that was being built when its session ended is left behind as it was, and so may its copy be by a reindex. */
const settled = [
  ...tables.flatMap(({ name, fillfactor }) => [
    `alter table fencepost.${name} drop column if exists ${mark}`,
    fillfactor === 100
      ? `alter table fencepost.${name} reset (fillfactor)`
      : `alter table fencepost.${name} set (fillfactor = ${fillfactor})`,
    `alter table fencepost.${name} set without cluster`,
  ]),
  `do $$
   declare v_index regclass;
   begin
     for v_index in
       select indexrelid::regclass from pg_index join pg_class c on c.oid = indexrelid
        where c.relnamespace = 'fencepost'::regnamespace and (not indisvalid or c.relname like '%${mark}%')
     loop
       execute 'drop index ' || v_index;
     end loop;
   end $$`,
]

export const ddl: ServerFault = {
  name: 'ddl',
  lastsMs: [1_000, 6_000],
  async inflict(world) {
    const random = ownChance(world)
    const { server } = world
    const change = async (): Promise<void> => {
      if (random() < 0.1) {
        await migrate({ connectionString: server.url, application_name: `${ownSessions} migrate` }, {})
        return
      }
      const statement = pick(changes(pick(tables, random)), random)
      await inSession(server, async (client) => {
        await client.query(`set lock_timeout = ${lockWithinMs}`)
        await client.query(statement)
      })
    }
    const running = goingOn('the lease tables', async (isOver) => {
      while (!isOver()) {
        // oxlint-disable-next-line no-await-in-loop -- One change after the other.
        await change().catch(() => {
          // Somebody else had the lock, or the server is in the hands of another fault: the next one may do.
        })
        // oxlint-disable-next-line no-await-in-loop
        await pause(between(0, 50, random))
      }
    })
    return {
      target: running.target,
      async heal() {
        await running.heal()
        for (const statement of settled) {
          // oxlint-disable-next-line no-await-in-loop
          await insist(server, async (client) => {
            await client.query(`set lock_timeout = ${lockWithinMs}`)
            await client.query(statement)
          })
        }
      },
    }
  },
}

import type { TextRow } from '../database/connection.ts'
import { type Examination, advice, sql } from './examination.ts'

/** The advisory locks under which open fenced transactions show themselves; see fencepost.fence_key(). */
const fenced = `k.locktype = 'advisory' and k.classid = 1178947139 and k.objsubid = 2 and k.granted
        and k.database = (select d.oid from pg_database d where d.datname = current_database())`

/** Transactions that keep a lease from moving on, and versions of the server that cannot help it. */
export async function checkSessions(exam: Examination): Promise<void> {
  checkVersion(exam)
  await checkPrepared(exam)
  await checkFenced(exam)
  await checkLong(exam)
}

function checkVersion(exam: Examination): void {
  const { version, versionText } = exam.facts
  const name = /^\S+ \S+/.exec(versionText)?.[0] ?? versionText
  if (version < 130_000) {
    exam.found(
      'server-too-old',
      'error',
      'the server',
      `The server is ${name}; fencepost needs PostgreSQL 13 or later.`,
      advice('Upgrade the server.'),
    )
  }
  if (version >= 140_000 && versionText.includes('linux')) return
  exam.found(
    'no-client-check',
    'note',
    'the server',
    `The server (${name}) does not notice that a client has died while a statement of it runs, so the lease moves on only when that statement ends.`,
    advice(
      'PostgreSQL 14 or later on Linux does. Elsewhere bound long statements with the option "timeout".',
    ),
  )
}

/** Names of leases by the key of their advisory lock, as far as they may be read. */
async function readKeys(exam: Examination): Promise<ReadonlyMap<string, string>> {
  if (!exam.facts.relations.has('leases')) return new Map()
  const rows = await exam.look(
    { what: 'the names of leases', needs: 'SELECT on fencepost.leases' },
    // As fencepost.fence_key() has it, which a role without rights may not call.
    `select (hashtext(l.name)::bigint & 4294967295)::text as key, l.name from fencepost.leases l
      where hashtext(l.name)::bigint & 4294967295 in (select k.objid::bigint from pg_locks k where ${fenced})`,
  )
  return new Map((rows ?? []).map((row) => [row['key']!, row['name']!]))
}

async function checkPrepared(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'prepared transactions', needs: 'the right to read the catalogs' },
    `select x.gid, format('rollback prepared %L;', x.gid) as fix, min(k.objid::text) as key,
            (extract(epoch from clock_timestamp() - x.prepared) * 1000)::bigint::text as age_ms
       from pg_prepared_xacts x
       -- Its lock on its own number leads to its other locks.
       join pg_locks own on own.pid is null and own.locktype = 'transactionid' and own.transactionid = x.transaction
       join pg_locks k on k.pid is null and k.virtualtransaction = own.virtualtransaction and ${fenced}
      where x.database = current_database()
      group by x.gid, x.prepared order by 1`,
  )
  if (rows === undefined || rows.length === 0) return
  const keys = await readKeys(exam)
  for (const row of rows) {
    exam.found(
      'prepared-transaction',
      Number(row['age_ms']) > exam.limits.idleMs ? 'error' : 'warning',
      `transaction ${row['gid']!}`,
      `The prepared transaction "${row['gid']!}" keeps ${leaseOf(keys, row)} since ${duration(row['age_ms']!)} ago: nobody else can be granted it until it is committed or rolled back.`,
      sql(row['fix']!),
    )
  }
}

function leaseOf(keys: ReadonlyMap<string, string>, row: TextRow): string {
  const name = keys.get(row['key'] ?? '')
  return name === undefined ? 'a lease' : `the lease "${name}"`
}

function duration(ms: string): string {
  const seconds = Math.round(Number(ms) / 1000)
  if (seconds < 120) return `${seconds} s`
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`
}

async function checkFenced(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'sessions in fenced transactions', needs: 'membership in pg_monitor' },
    `select s.pid::text as pid, s.state, s.usename as role, min(k.objid::text) as key,
            (extract(epoch from clock_timestamp() - s.state_change) * 1000)::bigint::text as idle_ms,
            (extract(epoch from clock_timestamp() - s.xact_start) * 1000)::bigint::text as age_ms
       from pg_locks k join pg_stat_activity s on s.pid = k.pid
      where ${fenced}
      group by 1, 2, 3, 5, 6 order by s.pid::text`,
  )
  if (rows === undefined || rows.length === 0) return
  const { idleMs, longFencedMs } = exam.limits
  const keys = await readKeys(exam)
  for (const row of rows) {
    if (row['state'] === null) {
      exam.found(
        'not-checked',
        'note',
        `session ${row['pid']!}`,
        `The doctor could not look at session ${row['pid']!}, which keeps ${leaseOf(keys, row)}: it needs membership in pg_monitor.`,
        advice('Run it again as a member of pg_monitor, or as a superuser.'),
      )
    } else if (row['state']!.startsWith('idle in transaction') && Number(row['idle_ms']) > idleMs) {
      exam.found(
        'idle-in-fenced-transaction',
        'warning',
        `session ${row['pid']!}`,
        `The session ${row['pid']!} (${row['role']!}) has been silent for ${duration(row['idle_ms']!)} in a fenced transaction, and keeps ${leaseOf(keys, row)}.`,
        sql(`select pg_terminate_backend(${row['pid']!});`),
      )
    } else if (Number(row['age_ms']) > longFencedMs) {
      exam.found(
        'long-fenced-transaction',
        'warning',
        `session ${row['pid']!}`,
        `The fenced transaction of session ${row['pid']!} (${row['role']!}) has been open for ${duration(row['age_ms']!)}, and nobody else can be granted ${leaseOf(keys, row)} until it ends.`,
        advice(
          `Do less in one transaction, or bound it (the option "timeout"). To end it now: select pg_terminate_backend(${row['pid']!});`,
        ),
      )
    }
  }
}

async function checkLong(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'long transactions', needs: 'membership in pg_monitor' },
    `select s.pid::text as pid, s.usename as role,
            (extract(epoch from clock_timestamp() - s.xact_start) * 1000)::bigint::text as age_ms
       from pg_stat_activity s
      where s.datname = current_database() and s.backend_type = 'client backend' and s.pid <> pg_backend_pid()
        and (s.backend_xid is not null or s.backend_xmin is not null)
        and s.xact_start < clock_timestamp() - $1::bigint * interval '1 ms'
        and s.pid not in (select k.pid from pg_locks k where ${fenced} and k.pid is not null)
      order by s.xact_start limit 5`,
    [exam.limits.longMs],
  )
  for (const row of rows ?? []) {
    exam.found(
      'long-transaction',
      'note',
      `session ${row['pid']!}`,
      `The transaction of session ${row['pid']!} (${row['role']!}) has been open for ${duration(row['age_ms']!)}: until it ends, old versions of the rows of holders and leases pile up, and heartbeats and grants grow slower.`,
      sql(`select pg_terminate_backend(${row['pid']!});`),
    )
  }
}

import { type Examination, advice, sql } from './examination.ts'

/** Whether what was answered survives the loss of the server. */
export async function checkReplication(exam: Examination): Promise<void> {
  if (exam.facts.isInRecovery) {
    exam.found(
      'server-in-recovery',
      'error',
      'the server',
      'The server is a standby: it grants no leases, and takes no writes.',
      advice('Name the primary in the database URL (with several hosts: target_session_attrs=read-write).'),
    )
    return
  }
  const rows = await exam.look(
    { what: 'the standbys', needs: 'membership in pg_monitor' },
    `select r.application_name as name, r.sync_state, current_setting('synchronous_standby_names') as wanted
       from pg_stat_replication r
      where r.state is distinct from 'backup'
        -- Subscribers of logical replication never become the primary.
        and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')
      order by 1`,
  )
  if (rows === undefined || rows.length === 0) return
  if (rows.some((row) => row['sync_state'] === null)) {
    exam.found(
      'not-checked',
      'note',
      'the standbys',
      'The doctor could not look at the standbys: it needs membership in pg_monitor.',
      advice('Run it again as a member of pg_monitor, or as a superuser.'),
    )
    return
  }
  if (rows.some((row) => row['sync_state'] === 'sync' || row['sync_state'] === 'quorum')) return
  const names = [...new Set(rows.map((row) => row['name']!))]
  const list = names.map((name) => `"${name}"`).join(', ')
  exam.found(
    'standby-async',
    'warning',
    `standby ${names.join(', ')}`,
    `The standby ${list} is asynchronous: a failover to it loses the last grants and fenced writes, though the old holders' later writes are refused there.`,
    sql(
      `alter system set synchronous_standby_names = 'ANY 1 (${list.replaceAll("'", "''")})';\nselect pg_reload_conf();`,
    ),
  )
}

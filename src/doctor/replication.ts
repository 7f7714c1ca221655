import { type Examination, advice, command, sql } from './examination.ts'

/** Whether what was answered survives the loss of the server. */
export async function checkReplication(exam: Examination): Promise<void> {
  if (exam.facts.isInRecovery) {
    exam.found(
      'server-in-recovery',
      'error',
      'the server',
      'The server is a standby: it grants no leases, and takes no writes.',
      advice(
        'Name the primary in the database URL, or what leads to it (docs/failover.md); a list of hosts is not understood.',
      ),
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
  const counter = await someCounter(exam)
  const also =
    counter === undefined
      ? ''
      : ` Tokens of a counter can then be handed out twice; those of a sequence that follows the clock are not: ${command('fencepost', 'sequence', counter, '--kind', 'clock').text}`
  const list = names.map((name) => `"${name}"`).join(', ')
  exam.found(
    'standby-async',
    'warning',
    `standby ${names.join(', ')}`,
    `The standby ${list} is asynchronous: a failover to it loses the last grants and fenced writes, though the old holders' later writes are refused there.${also}`,
    sql(
      `alter system set synchronous_standby_names = 'ANY 1 (${list.replaceAll("'", "''")})';\nselect pg_reload_conf();`,
    ),
  )
}

/** Of the sequences that count, the one that leases most likely draw from. */
async function someCounter(exam: Examination): Promise<string | undefined> {
  if (!exam.facts.relations.has('sequences')) return undefined
  const rows = await exam.look(
    { what: 'the kinds of the token sequences', needs: 'SELECT on fencepost.sequences' },
    `select s.name from fencepost.sequences s where s.kind = 'counter' order by s.name <> 'default', 1 limit 1`,
  )
  return rows?.[0]?.['name'] ?? undefined
}

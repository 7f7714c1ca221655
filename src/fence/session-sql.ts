/** Ends the first check of a session: the bounds that the session itself gets, where it is ours. */
export function sessionSettings(pid: number | 'null'): string {
  const idle = `pg_catalog.current_setting('idle_in_transaction_session_timeout')`
  const own = `pg_catalog.current_setting('idle_session_timeout', true)`
  return `select pg_catalog.pg_backend_pid() = ${pid} as is_direct, ${idle} as idle,
    case when pg_catalog.pg_backend_pid() = ${pid}
         then pg_catalog.set_config('fencepost.fence', pg_catalog.current_setting('fencepost.fence'), false) end,
    case when pg_catalog.pg_backend_pid() = ${pid} and (${own} = '0' or ${own}::interval > ${idle}::interval and ${idle} <> '0')
         then pg_catalog.set_config('idle_session_timeout', ${idle}, false) end`
}

/**
 * Ends a message that begins a transaction: gives a row when that only reads. PostgreSQL lets it become one that writes until it has
 * taken its first snapshot, and this takes it. The bounds of a fence come along.
 */
export function readOnlySnapshot(idle: string, timeoutMs: number | null): string {
  const own = `pg_catalog.current_setting('idle_in_transaction_session_timeout')`
  const timeout = `case when pg_catalog.current_setting('server_version_num')::integer >= 170000 then 'transaction_timeout'
    else 'statement_timeout' end`
  return `select case when '${idle}' <> '0' and (${own} = '0' or ${own}::interval > '${idle}'::interval)
         then pg_catalog.set_config('idle_in_transaction_session_timeout', '${idle}', true) end
         ${timeoutMs === null ? '' : `, pg_catalog.set_config(${timeout}, '${timeoutMs}', true)`}
    where pg_catalog.current_setting('transaction_read_only') = 'on' and not pg_catalog.pg_is_in_recovery()`
}

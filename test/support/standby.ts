import { Client } from 'pg'
import { eventually } from './cli.ts'

/** Has every commit of the server wait for a standby that there is none of. `watcher` commits without waiting. */
export async function awaitStandby(watcher: Client, connectionString: string): Promise<void> {
  await watcher.query(`alter system set synchronous_standby_names = 'nobody'`)
  await watcher.query('select pg_reload_conf()')
  // A session may know of the setting before the process that has commits wait for it.
  const probe = new Client({ connectionString })
  await probe.connect()
  try {
    await eventually(async () => {
      let isAnswered = false
      const writing = probe.query(`select pg_logical_emit_message(true, 'probe', '')`).then(() => {
        isAnswered = true
      })
      let isWaiting = false
      await eventually(async () => {
        isWaiting = await cancelWaits(watcher)
        return isWaiting || isAnswered
      })
      await writing
      return isWaiting
    })
  } finally {
    await probe.end()
  }
}

/** Cancels what waits for the standby now; true when something did. */
export async function cancelWaits(watcher: Client): Promise<boolean> {
  const { rowCount } = await watcher.query(
    `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`,
  )
  return rowCount === 1
}

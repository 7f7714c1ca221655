import { insist } from './nemesis-session.ts'
import type { ServerFault } from './server-fault.ts'

const silent = `create or replace function pg_catalog.pg_notify(text, text) returns void
  language sql volatile parallel restricted as 'select'`
const outspoken = `create or replace function pg_catalog.pg_notify(text, text) returns void
  language internal volatile parallel restricted as 'pg_notify'`

/**
 * No notification gets through, and nobody is told: as behind a pooler, when a queue is full, or when a process died before it sent one.
 * Fencepost sends each by this function, which is replaced in the clients' database by one that does nothing.
 */
export const notifyOff: ServerFault = {
  name: 'notify-off',
  lastsMs: [1_000, 10_000],
  async inflict({ server }) {
    await insist(server, (client) => client.query(silent))
    return {
      target: 'every notification',
      async heal() {
        await insist(server, (client) => client.query(outspoken))
      },
    }
  },
}

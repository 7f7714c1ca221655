import type { TortureServer } from './fault.ts'
import { insist } from './nemesis-session.ts'
import type { ServerFault } from './server-fault.ts'

/** Plans that were kept know the function by its number, and a change of any schema has them all made anew. */
const planAnew = 'create schema torture_hush; drop schema torture_hush'

const silence = `begin;
  alter function pg_catalog.pg_notify(text, text) rename to torture_notify;
  create function pg_catalog.pg_notify(text, text) returns void
    language sql volatile parallel restricted as 'select';
  ${planAnew};
  commit`

const outspoken = `begin;
  drop function pg_catalog.pg_notify(text, text);
  alter function pg_catalog.torture_notify(text, text) rename to pg_notify;
  ${planAnew};
  commit`

/** Looks first: an answer may have been lost with the server. */
async function change(server: TortureServer, toSilent: boolean): Promise<void> {
  await insist(server, async (client) => {
    const { rows } = await client.query<{ is_silent: boolean }>(
      `select to_regproc('pg_catalog.torture_notify') is not null as is_silent`,
    )
    if (rows[0]!.is_silent !== toSilent) await client.query(toSilent ? silence : outspoken)
  })
}

/**
 * No notification gets through, and nobody is told: as behind a pooler, when a queue is full, or when a process died before it sent one.
 * Fencepost sends each by a function, which is replaced in the clients' database by one that does nothing.
 */
export const notifyOff: ServerFault = {
  name: 'notify-off',
  lastsMs: [1_000, 10_000],
  async inflict({ server }) {
    await change(server, true)
    return { target: 'every notification', heal: () => change(server, false) }
  },
}

import type { Client } from 'pg'

const quiet = new WeakSet<object>()

/**
 * Lets a client that has served fencepost break without ending the process. `pg` reports a lost connection as an error
 * event, also some time after the statement that met it has been answered, when the client is nobody's: one listener that
 * stays is the only one that is always there. The pool's own still hears the event.
 */
export function quieten(client: Pick<Client, 'on'>): void {
  if (quiet.has(client)) return
  quiet.add(client)
  client.on('error', () => {})
}

import type { ClientConfig } from 'pg'
import type { Clock } from '../clock.ts'
import type { Logger } from '../logger.ts'
import { Connection } from './connection.ts'
import { schemaGreeting } from './schema.ts'

/** The connection over which leases are granted and released, which may be on its way before anybody needs it. */
export interface Grants {
  readonly connection: Connection
  /** Rejects as `Connection.connect` does. */
  readonly connected: Promise<void>
}

export function grantsConnection(config: ClientConfig, clock: Clock, logger: Logger): Connection {
  return new Connection({ config, applicationName: 'fencepost', clock, logger }, schemaGreeting)
}

/** Connects ahead of `openOn`, to which it is given. */
export function connectAhead(connection: Connection, timeoutMs: number): Grants {
  const connected = connection.connect(timeoutMs)
  // Whoever is given it is told; until then nobody is.
  connected.catch(() => {})
  return { connection, connected }
}

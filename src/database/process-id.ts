import type { Client } from 'pg'

/**
 * The process of the server that a client was told of when it connected. Where another one answers, a pooler stands in between.
 * Undefined for a client that does not tell, such as `pg-native`.
 */
export function processIdOf(client: Client): number | undefined {
  const { processID } = client as Client & { readonly processID?: unknown }
  return typeof processID === 'number' ? processID : undefined
}

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EmbeddedServer, type EmbeddedServerOptions } from '../../src/database/embedded-server.ts'

const newest = 18

/** The major version of what `startEmbedded` starts. */
export const embeddedVersion = Number(process.env['FENCEPOST_TEST_POSTGRES'] || newest)

/**
 * A server for tests, of the version that FENCEPOST_TEST_POSTGRES names: 15, 16 or 17, from the packages that `npm run matrix` installs. By
 * default it is the one that fencepost brings.
 */
export function startEmbedded(options: EmbeddedServerOptions): Promise<EmbeddedServer> {
  if (embeddedVersion === newest) return EmbeddedServer.start(options)
  const bin = fileURLToPath(
    new URL(`../matrix/node_modules/pg${embeddedVersion}/native/bin`, import.meta.url),
  )
  if (!existsSync(bin)) {
    throw new Error(`PostgreSQL ${embeddedVersion} is not installed. Run: npm ci --prefix test/matrix`)
  }
  const binaries = { initdb: join(bin, 'initdb'), postgres: join(bin, 'postgres') }
  return EmbeddedServer.start({ ...options, binaries })
}

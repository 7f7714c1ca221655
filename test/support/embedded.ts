import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EmbeddedServer, type EmbeddedServerOptions } from '../../src/database/embedded-server.ts'

/**
 * A server for tests, of the version that FENCEPOST_TEST_POSTGRES names: 15, 16 or 17, from the packages that `npm run matrix` installs. By
 * default it is the one that fencepost brings.
 */
export function startEmbedded(options: EmbeddedServerOptions): Promise<EmbeddedServer> {
  const version = process.env['FENCEPOST_TEST_POSTGRES']
  if (version === undefined || version === '' || version === '18') return EmbeddedServer.start(options)
  const bin = fileURLToPath(new URL(`../matrix/node_modules/pg${version}/native/bin`, import.meta.url))
  if (!existsSync(bin)) {
    throw new Error(`PostgreSQL ${version} is not installed. Run: npm ci --prefix test/matrix`)
  }
  return EmbeddedServer.start({
    ...options,
    binaries: { initdb: join(bin, 'initdb'), postgres: join(bin, 'postgres') },
  })
}

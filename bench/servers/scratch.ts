import { rmSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A folder that is gone with its contents at the end of the scope, or of the process. */
export async function scratch(): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'fencepost-bench-'))
  // Servers that were killed the moment before may still be about to go.
  const remove = (): void => rmSync(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 })
  process.on('exit', remove)
  return {
    path,
    async [Symbol.asyncDispose]() {
      process.off('exit', remove)
      await rm(path, { recursive: true, force: true })
    },
  }
}

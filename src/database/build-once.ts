import { randomUUID } from 'node:crypto'
import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { failure, hasCode } from './local-server-failure.ts'
import { processExists } from './server-process.ts'

/** Somebody else's unfinished build is waited for no longer than this. */
const BUILD_WITHIN_MS = 120_000
const POLL_MS = 20

/**
 * Fills `target` by building in a folder beside it and renaming that. Of several builders one wins the rename and
 * the others discard theirs, so `target` is complete whenever it exists. The oldest builder alive usually goes
 * alone: 20 initdb runs at once would be right as well, but slow.
 */
export async function buildOnce(
  target: string,
  isBuilt: () => boolean,
  build: (folder: string) => Promise<void>,
): Promise<void> {
  const prefix = `.${basename(target)}-`
  const folder = join(dirname(target), `${prefix}${Date.now()}-${process.pid}-${randomUUID()}`)
  try {
    while (!isBuilt()) {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const oldest = (await liveBuilds(dirname(target), prefix))[0]
      if (oldest === undefined || oldest === basename(folder)) {
        await build(folder)
        await renameUnlessThere(folder, target)
        if (!isBuilt()) throw failure(`${target} is in the way: it is not what fencepost builds there.`)
      } else {
        await sleep(POLL_MS)
      }
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function renameUnlessThere(from: string, to: string): Promise<void> {
  try {
    await rename(from, to)
  } catch (error) {
    if (!hasCode(error, 'EEXIST', 'ENOTEMPTY')) throw error
  }
}

/** The unfinished builds whose processes live, oldest first. Those of dead processes are removed. */
async function liveBuilds(parent: string, prefix: string): Promise<string[]> {
  const live: string[] = []
  for (const name of (await readdir(parent)).filter((each) => each.startsWith(prefix))) {
    const [startedAt, pid] = name.slice(prefix.length).split('-').map(Number)
    if (pid === undefined || startedAt === undefined) continue
    if (!processExists(pid)) await rm(join(parent, name), { recursive: true, force: true })
    // A number that was given to another process since looks alive for ever, hence the bound.
    else if (Date.now() - startedAt < BUILD_WITHIN_MS) live.push(name)
  }
  return live.toSorted()
}

import { execFile } from 'node:child_process'
import { open, readdir, rename, rm, stat, symlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import type { TortureServer } from './fault.ts'
import { inSession, pause } from './nemesis-session.ts'
import { type ServerFault, alone, goingOn } from './server-fault.ts'
import { SmallDisk } from './small-disk.ts'

const execute = promisify(execFile)

/** A file of the log that has been begun. One that is kept for later use bears the address of its former content, or none. */
async function isBegun(file: string): Promise<boolean> {
  const name = file.slice(-24)
  const { size } = await stat(file)
  // The timeline, the address in files of 4 GB, and the number of the file in that: eight hexadecimal digits each.
  const address = (BigInt(`0x${name.slice(8, 16)}`) << 32n) + BigInt(`0x${name.slice(16)}`) * BigInt(size)
  const handle = await open(file)
  try {
    const header = Buffer.alloc(16)
    await handle.read(header, 0, 16, 0)
    return header.readBigUInt64LE(8) === address
  } finally {
    await handle.close()
  }
}

async function sizeOf(paths: readonly string[]): Promise<number> {
  const { stdout } = await execute('du', ['-cs', '--block-size=1', ...paths])
  return Number(/(\d+)\ttotal/.exec(stdout)![1])
}

/** Moves the log of a stopped server to a small disk. Returns how it is moved back. */
async function moveLog(
  dataDirectory: string,
  spare: number,
): Promise<{ disk: SmallDisk; moveBack: () => Promise<void> }> {
  const log = join(dataDirectory, 'pg_wal')
  const kept = join(dirname(dataDirectory), 'pg_wal.kept')
  const entries = await readdir(log)
  const needed = await Promise.all(
    entries.map(async (entry) => !/^[0-9A-F]{24}$/.test(entry) || isBegun(join(log, entry))),
  )
  const paths = entries.filter((_, index) => needed[index]).map((entry) => join(log, entry))
  const path = join(dirname(dataDirectory), 'pg_wal.small')
  const disk = await SmallDisk.mount(path, (await sizeOf(paths)) + spare, log)
  await execute('cp', ['-a', ...paths, disk.path])
  await rename(log, kept)
  await symlink(disk.path, log)
  return {
    disk,
    async moveBack() {
      const fresh = `${kept}.fresh`
      await execute('cp', ['-a', disk.path, fresh])
      await rm(log)
      await rename(fresh, log)
      await rm(kept, { recursive: true })
      await disk.unmount()
    },
  }
}

const segment = 16 << 20

/** Leaves a file of the log behind, and wants another. */
async function nextSegment(server: TortureServer): Promise<void> {
  await inSession(server, (client) =>
    client.query(`select pg_create_restore_point('torture'), pg_switch_wal()`),
  )
}

/** The write-ahead log has no room: the server panics, and mostly cannot start until it has room again. */
export const fullWal: ServerFault = {
  name: 'full-wal',
  lastsMs: [500, 4_000],
  reason: () => SmallDisk.reason(),
  inflict: alone('full-wal', async ({ server }) => {
    const { dataDirectory } = server.embedded
    await server.stop('immediate')
    const { disk, moveBack } = await moveLog(dataDirectory, 2 * segment)
    const heal = async (): Promise<void> => {
      await server.stop('immediate')
      await disk.free()
      await moveBack()
      await server.startAgain()
    }
    try {
      await server.startAgain()
    } catch (error) {
      await heal()
      throw error
    }
    const filling = goingOn('pg_wal', async (isOver) => {
      while (!isOver()) {
        // oxlint-disable-next-line no-await-in-loop -- What a recovery has removed is taken, too.
        await disk.fill()
        // oxlint-disable-next-line no-await-in-loop
        await nextSegment(server).catch(() => pause(50))
      }
    })
    return {
      target: filling.target,
      async heal() {
        await filling.heal()
        await heal()
      },
    }
  }),
}

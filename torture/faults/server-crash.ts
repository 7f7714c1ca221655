/** Faults of the server as a whole. */
import { sendSignal, serverProcess } from '../../src/database/server-process.ts'
import type { TortureServer } from './fault.ts'
import { between, ownChance } from './chance.ts'
import { insist, pause } from './nemesis-session.ts'
import { type ServerFault, alone, goingOn } from './server-fault.ts'

/** By an immediate shutdown, which all processes hear of, or by the death of the postmaster, which its children survive for a while. */
async function crash(server: TortureServer, how: 'immediate' | 'kill'): Promise<void> {
  if (how === 'kill') {
    const { pid, dataDirectory } = server.embedded
    sendSignal(pid, 'SIGKILL')
    // oxlint-disable-next-line no-await-in-loop -- It is about to be gone.
    while ((await serverProcess(pid, dataDirectory)) !== undefined) await pause(5)
  }
  await server.stop('immediate')
}

export const crashOnce: ServerFault = {
  name: 'crash',
  lastsMs: [0, 3_000],
  inflict: alone('crash', async (world) => {
    const { server } = world
    const random = ownChance(world)
    const how = random() < 0.5 ? 'immediate' : 'kill'
    await crash(server, how)
    return {
      target: how === 'kill' ? 'the postmaster, by SIGKILL' : 'the server, by an immediate shutdown',
      heal: () => server.startAgain(),
    }
  }),
}

/** It comes back, and is gone again before or after clients have found it. */
export const restartLoop: ServerFault = {
  name: 'restart-loop',
  lastsMs: [2_000, 8_000],
  inflict: alone('restart-loop', async (world) => {
    const { server } = world
    const random = ownChance(world)
    return goingOn('the server', async (isOver) => {
      do {
        // oxlint-disable-next-line no-await-in-loop -- One crash after the other is the point.
        await crash(server, random() < 0.5 ? 'immediate' : 'kill')
        // oxlint-disable-next-line no-await-in-loop
        await server.startAgain()
        // oxlint-disable-next-line no-await-in-loop
        await pause(between(0, 700, random))
      } while (!isOver())
    })
  }),
}

/** Connections stay open and nothing answers. */
export const freeze: ServerFault = {
  name: 'freeze',
  lastsMs: [100, 5_000],
  inflict: alone('freeze', async ({ server }) => {
    const { embedded } = server
    await embedded.freeze()
    return { target: 'the server', heal: () => embedded.thaw() }
  }),
}

/** How the server is told that a commit need not wait for the disk, nor the disk be written to soon. */
const careless = {
  synchronous_commit: 'off',
  wal_writer_delay: '10s',
  wal_writer_flush_after: '1GB',
}

/** Commits are answered before they are written, and the last of them are then lost in a crash. */
export const asyncCommit: ServerFault = {
  name: 'async-commit',
  lastsMs: [500, 6_000],
  inflict: alone('async-commit', async (world) => {
    const { server } = world
    const random = ownChance(world)
    await insist(server, async (client) => {
      for (const [name, value] of Object.entries(careless)) {
        // oxlint-disable-next-line no-await-in-loop -- One session takes one statement at a time.
        await client.query(`alter system set ${name} = '${value}'`)
      }
      await client.query('select pg_reload_conf()')
    })
    const how = random() < 0.5 ? 'immediate' : 'kill'
    return {
      target: 'the server',
      async heal() {
        await crash(server, how)
        await server.startAgain()
        await insist(server, async (client) => {
          for (const name of Object.keys(careless)) {
            // oxlint-disable-next-line no-await-in-loop
            await client.query(`alter system reset ${name}`)
          }
          await client.query('select pg_reload_conf()')
        })
      },
    }
  }),
}

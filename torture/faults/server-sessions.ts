/** Faults of single sessions, seen from the server. */
import { sendSignal } from '../../src/database/server-process.ts'
import type { Client } from 'pg'
import { between, ownChance, pick } from './chance.ts'
import { inSession, sessionsOfClients } from './nemesis-session.ts'
import { type ServerFault, noHealing, nothing } from './server-fault.ts'

interface Session {
  readonly pid: number
  readonly name: string
}

async function sessions(client: Client): Promise<Session[]> {
  const { rows } = await client.query<Session>(
    `select pid, application_name as name from pg_stat_activity where ${sessionsOfClients} order by pid`,
  )
  return rows
}

/** Some sessions of one name: each name is as likely as the next, however many go by it. */
function some(all: readonly Session[], random: () => number): Session[] {
  const names = [...new Set(all.map(({ name }) => name))].toSorted()
  if (names.length === 0) return []
  const name = pick(names, random)
  const left = all.filter((each) => each.name === name)
  const chosen: Session[] = []
  for (let more = between(1, left.length, random); more > 0; more -= 1) {
    chosen.push(...left.splice(between(0, left.length - 1, random), 1))
  }
  return chosen
}

const told = (chosen: readonly Session[]): string =>
  `${chosen.length} of "${chosen[0]!.name}" (${chosen.map(({ pid }) => pid).join(', ')})`

/** Ends some sessions of one name: of fencepost's requests, its beats, its listener, or the application. */
export const terminate: ServerFault = {
  name: 'terminate',
  lastsMs: [0, 0],
  async inflict(world) {
    const random = ownChance(world)
    return inSession(world.server, async (client) => {
      const chosen = some(await sessions(client), random)
      if (chosen.length === 0) return nothing('there is no session')
      await client.query('select pg_terminate_backend(pid) from unnest($1::int[]) pid', [
        chosen.map(({ pid }) => pid),
      ])
      return { target: told(chosen), heal: noHealing }
    })
  },
}

export const terminateAll: ServerFault = {
  name: 'terminate-all',
  lastsMs: [0, 0],
  async inflict(world) {
    return inSession(world.server, async (client) => {
      const { rowCount } = await client.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where ${sessionsOfClients}`,
      )
      return { target: `${rowCount} sessions`, heal: noHealing }
    })
  },
}

/** Stops some sessions where they are, with the locks that they hold. */
export const freezeSessions: ServerFault = {
  name: 'freeze-sessions',
  lastsMs: [100, 4_000],
  async inflict(world) {
    const random = ownChance(world)
    const chosen = await inSession(world.server, async (client) => {
      const found = some(await sessions(client), random)
      for (const { pid } of found) sendSignal(pid, 'SIGSTOP')
      return found
    })
    if (chosen.length === 0) return nothing('there is no session')
    return {
      target: told(chosen),
      async heal() {
        for (const { pid } of chosen) sendSignal(pid, 'SIGCONT')
      },
    }
  },
}

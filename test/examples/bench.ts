import { inject, onTestFinished } from 'vitest'
import { type RunOptions, type RunSettings, checkedSettings } from '../../src/cli/run-options.ts'
import { TestDatabase } from '../support/database.ts'
import { Gate } from '../support/gate.ts'

/** A database for one test: the examples name their leases and tables, so no two tests can share one. */
export async function freshDatabase(options: { readonly migrated?: boolean } = {}): Promise<TestDatabase> {
  const database = new TestDatabase()
  await database.create(options.migrated === false ? undefined : inject('template'))
  onTestFinished(() => database.drop())
  return database
}

/** Holds up migrate.js before it has looked at what is to be done, outside of its fenced transactions. */
export async function closeGate(database: TestDatabase): Promise<Gate> {
  await database.query('create table applied_migrations (name text primary key)')
  return Gate.close(database, 'applied_migrations')
}

export async function stateOf(database: TestDatabase, lease: string): Promise<string | undefined> {
  const [row] = await database.query<{ state: string }>(
    'select state from fencepost.leases where name = $1',
    [lease],
  )
  return row?.state
}

const flags = new Set(['no-wait', 'fence', 'foreground', 'quiet', 'json'])

export interface RunWords {
  readonly lease: string
  /** As the command itself checks and understands them. */
  readonly settings: RunSettings
  readonly command: readonly string[]
}

/** Reads the words of a `fencepost run`, without the program's own. */
export function readRun([verb, lease, ...words]: readonly string[]): RunWords {
  if (verb !== 'run' || lease === undefined) throw new Error(`not "run LEASE": ${verb} ${lease}`)
  const options: Record<string, string | boolean | string[]> = { wait: '0s', ttl: '30s' }
  for (let at = 0; at < words.length;) {
    const word = words[at]!
    if (word === '--') {
      const settings = checkedSettings(lease, options as unknown as RunOptions)
      return { lease, settings, command: words.slice(at + 1) }
    }
    const name = word.replace(/^--/, '')
    const key = name.replaceAll(/-(\w)/g, (_, letter: string) => letter.toUpperCase())
    const value = words[at + 1]!
    if (flags.has(name)) options[key] = true
    else options[key] = name === 'meta' ? [value] : value
    at += flags.has(name) ? 1 : 2
  }
  throw new Error('a run without a command')
}

/** How long fencepost takes at most from the end of its command to its own: the grace, and giving back. */
export function endsWithinMs({ graceMs }: RunSettings): number {
  const releaseMs = 4000
  const closeMs = 2000
  return graceMs + releaseMs + closeMs
}

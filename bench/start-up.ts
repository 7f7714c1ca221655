import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EmbeddedServer } from '../src/database/embedded-server.ts'
import { Fencepost } from '../src/index.ts'
import { median } from './side-by-side.ts'

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url))
const main = path('../dist/cli/main.js')

/** What is started, with the name of a lease that nobody holds. */
const contenders = {
  bare: (lease: string) => [path('children/bare.mjs'), lease],
  service: (lease: string) => [path('children/service.mjs'), lease],
  run: (lease: string) => [main, 'run', lease, '--', 'sh', '-c', 'echo granted'],
} as const

interface Spread {
  readonly median: number
  readonly min: number
  readonly max: number
}

/** By duration, so that less is better. */
export interface StartUp {
  readonly startUp: { readonly bareMs: number; readonly service: Spread; readonly run: Spread }
}

/**
 * From the start of a process to its first lease, on a server of its own: a service's by way of the library, and that of
 * `fencepost run`, to the first word of its command, both ÷ a bare script's that sends the same statements.
 */
export async function measureStartUp(rounds: number): Promise<StartUp> {
  if (!existsSync(main)) throw new Error('what is measured is what was built: npm run build')
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-bench-'))
  const server = await EmbeddedServer.start({ directory })
  try {
    await Fencepost.migrate({ connectionString: server.url })
    const taken = { bare: [] as number[], service: [] as number[], run: [] as number[] }
    for (let round = 0; round <= rounds; round += 1) {
      for (const name of ['bare', 'service', 'run'] as const) {
        const ms = await firstWordMs(contenders[name](`start-up-${name}-${round}`), server.url)
        if (round > 0) taken[name].push(ms)
      }
    }
    const over = (times: readonly number[]): Spread => {
      const ratios = times.map((ms, round) => ms / taken.bare[round]!)
      return { median: median(ratios), min: Math.min(...ratios), max: Math.max(...ratios) }
    }
    const startUp = { bareMs: median(taken.bare), service: over(taken.service), run: over(taken.run) }
    for (const name of ['service', 'run'] as const) {
      const { median: middle, min, max } = startUp[name]
      console.log(
        `start-up ${name.padEnd(7)} ÷ bare  ${middle.toFixed(2)} (${min.toFixed(2)} … ${max.toFixed(2)})  bare ` +
          `${startUp.bareMs.toFixed(0)} ms`,
      )
    }
    return { startUp }
  } finally {
    await server.stop('fast')
    await rm(directory, { recursive: true, force: true })
  }
}

function firstWordMs(args: readonly string[], url: string): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const startedMs = performance.now()
  let saidMs: number | undefined
  const child = spawn(process.execPath, args, {
    env: { ...process.env, FENCEPOST_DATABASE_URL: url },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  child.stdout.on('data', () => (saidMs ??= performance.now() - startedMs))
  child.on('error', reject)
  // The next one starts when nothing of this one is left.
  child.on('close', () => {
    if (saidMs === undefined) reject(new Error(`said nothing: ${args.join(' ')}`))
    else resolve(saidMs)
  })
  return promise
}

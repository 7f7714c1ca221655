import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { BenchServer } from '../servers/bench-server.ts'
import { type Spread, median, ratios, shown, spread } from '../spread.ts'
import type { Measure } from './measure.ts'

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url))
const main = path('../../dist/cli/main.js')

/** What is started, with the name of a lease that nobody holds. */
const starts = {
  bare: (lease: string) => [path('../children/bare.mjs'), lease],
  service: (lease: string) => [path('../children/service.mjs'), lease],
  run: (lease: string) => [main, 'run', lease, '--', 'sh', '-c', 'echo granted'],
} as const

export interface StartUpFigures {
  /** For orientation only. */
  readonly bareMs: number
  readonly service: Spread
  readonly run: Spread
}

/** A service's by way of the library, and that of `fencepost run`, to the first word of its command. */
export const startUp: Measure<StartUpFigures> = {
  name: 'start-up',
  group: 'start-up',
  what: "from the start of a process to its first lease ÷ a bare pg script's that sends the same statements; less is better",
  async run(effort) {
    if (!existsSync(main)) throw new Error('what is measured is what was built: npm run build')
    await using server = await BenchServer.start()
    const taken = { bare: [] as number[], service: [] as number[], run: [] as number[] }
    for (let round = 0; round <= effort.rounds; round += 1) {
      for (const name of ['bare', 'service', 'run'] as const) {
        const ms = await firstWordMs(starts[name](`start-up-${name}-${round}`), server.url)
        if (round > 0) taken[name].push(ms)
      }
    }
    const over = (times: readonly number[]): Spread => spread(ratios(times, taken.bare))
    const figures = { bareMs: median(taken.bare), service: over(taken.service), run: over(taken.run) }
    console.log(`a service      ${shown(figures.service)}`)
    console.log(`fencepost run  ${shown(figures.run)}; the bare script took ${figures.bareMs.toFixed(0)} ms`)
    return figures
  },
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

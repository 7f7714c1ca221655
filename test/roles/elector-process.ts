import { type ChildProcess, fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { ElectorNote, ElectorOrder, ElectorReport } from './children/elector.ts'

export interface ElectorProcessOptions {
  readonly url: string
  readonly name: string
  readonly ttlMs: number
  /** The file it writes its record to. */
  readonly record: string
  onElected(token: bigint): void
}

/** A real process that stands for election, to be paused and killed. */
export class ElectorProcess {
  readonly #child: ChildProcess
  readonly #record: string
  readonly #exited = Promise.withResolvers<void>()
  stderr = ''

  constructor(options: ElectorProcessOptions) {
    this.#record = options.record
    this.#child = fork(fileURLToPath(new URL('children/elector.ts', import.meta.url)), {
      execArgv: ['--unhandled-rejections=strict'],
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: {
        ...process.env,
        FENCEPOST_DATABASE_URL: options.url,
        ELECTOR_NAME: options.name,
        ELECTOR_TTL: String(options.ttlMs),
        ELECTOR_RECORD: options.record,
      },
    })
    this.#child.stderr!.on('data', (text: Buffer) => (this.stderr += text.toString()))
    this.#child.on('message', (report: ElectorReport) => {
      if (report.elected !== undefined) options.onElected(BigInt(report.elected))
    })
    // An order to one that has just been killed.
    this.#child.on('error', () => {})
    this.#child.on('exit', () => this.#exited.resolve())
  }

  send(order: ElectorOrder): void {
    this.#child.send(order, () => {})
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    await this.#exited.promise
  }

  /** Stops the election, hands over, and ends. */
  async leave(): Promise<void> {
    this.send({ do: 'leave' })
    await this.#exited.promise
  }

  /** All that it has written down, in its order. */
  notes(): ElectorNote[] {
    const lines = readFileSync(this.#record, 'utf8').split('\n')
    // What comes after the last end of a line is a line that was being written when it was killed.
    return lines.slice(0, -1).map((line) => JSON.parse(line) as ElectorNote)
  }
}

import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { OpenOptions } from '../../src/index.ts'
import type { Order, Report } from '../scenarios/children/waiter.ts'

const program = fileURLToPath(new URL('../scenarios/children/waiter.ts', import.meta.url))
const shiftedClock = fileURLToPath(new URL('../scenarios/children/shifted-clock.ts', import.meta.url))

/** A real process that waits for leases, to be killed, paused and set to another time. */
export class WaiterProcess implements AsyncDisposable {
  readonly reports: Report[] = []
  readonly #child: ChildProcess
  #wake = Promise.withResolvers<void>()
  #isGone = false
  #stderr = ''

  private constructor(options: OpenOptions, clockOffMs: number | undefined) {
    const shifted = clockOffMs === undefined ? [] : ['--import', shiftedClock]
    this.#child = fork(program, [JSON.stringify(options)], {
      execArgv: ['--unhandled-rejections=strict', ...shifted],
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, CLOCK_OFF_MS: String(clockOffMs) },
    })
    this.#child.stderr!.on('data', (text: Buffer) => (this.#stderr += text.toString()))
    this.#child.on('message', (report) => {
      this.reports.push(report as Report)
      this.#tell()
    })
    this.#child.on('exit', () => {
      this.#isGone = true
      this.#tell()
    })
  }

  /** `clockOffMs`: how far its wall clock is off. */
  static async start(url: string, options: OpenOptions = {}, clockOffMs?: number): Promise<WaiterProcess> {
    const waiter = new WaiterProcess({ connectionString: url, ...options }, clockOffMs)
    await waiter.did(0, 'start')
    return waiter
  }

  get isGone(): boolean {
    return this.#isGone
  }

  send(order: Order): void {
    this.#child.send(order)
  }

  /** The first report about this order with one of these contents. Others may come before. */
  async did(id: number, ...what: Report['did'][]): Promise<Report> {
    for (;;) {
      const wake = this.#wake.promise
      const report = this.reports.find((one) => one.id === id && what.includes(one.did))
      if (report !== undefined) return report
      if (this.#isGone) throw new Error(`the waiter has ended: ${this.#stderr}`)
      // oxlint-disable-next-line no-await-in-loop -- Until it is reported.
      await wake
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    // oxlint-disable-next-line no-await-in-loop
    while (!this.#isGone) await this.#wake.promise
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
  }

  #tell(): void {
    this.#wake.resolve()
    this.#wake = Promise.withResolvers<void>()
  }
}

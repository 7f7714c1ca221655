import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { Order, Report } from '../scenarios/children/writer.ts'

/** A real process that holds leases and writes, to be paused and killed. */
export class WriterProcess {
  readonly #child: ChildProcess
  readonly #reports: Report[] = []
  #wake: (() => void) | undefined
  #isGone = false
  stderr = ''

  private constructor(url: string, execArgv: string[]) {
    const file = fileURLToPath(new URL('../scenarios/children/writer.ts', import.meta.url))
    this.#child = fork(file, {
      execArgv,
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, FENCEPOST_DATABASE_URL: url },
    })
    this.#child.stderr!.on('data', (text: Buffer) => (this.stderr += text.toString()))
    this.#child.on('message', (report) => {
      this.#reports.push(report as Report)
      this.#wake?.()
    })
    this.#child.on('exit', () => {
      this.#isGone = true
      this.#wake?.()
    })
  }

  static async start(
    url: string,
    execArgv: string[] = ['--unhandled-rejections=strict'],
  ): Promise<WriterProcess> {
    const writer = new WriterProcess(url, execArgv)
    await writer.report()
    return writer
  }

  get isGone(): boolean {
    return this.#isGone
  }

  async order(order: Order): Promise<Report> {
    this.send(order)
    return this.report()
  }

  send(order: Order): void {
    this.#child.send(order)
  }

  async report(): Promise<Report> {
    while (this.#reports.length === 0) {
      if (this.#isGone) throw new Error(`the writer has ended: ${this.stderr}`)
      await new Promise<void>((resolve) => (this.#wake = resolve))
    }
    return this.#reports.shift()!
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    while (!this.#isGone) await new Promise<void>((resolve) => (this.#wake = resolve))
  }
}

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { openSync, closeSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { ClientSettings, Message, Word } from '../client/settings.ts'
import type { Order, Step, TortureClient } from '../faults/fault.ts'
import type { TcpProxy } from '../../test/support/tcp-proxy.ts'

const program = fileURLToPath(new URL('../client/main.ts', import.meta.url))

/** Those that are still there when this process ends: stopped ones are killed as well. */
const alive = new Set<ChildProcess>()
process.on('exit', () => {
  for (const child of alive) child.kill('SIGKILL')
})

export interface ClientStart {
  readonly settings: ClientSettings
  readonly proxy: TcpProxy
  /** Where it says what it has not caught. */
  readonly log: string
  readonly execArgv: readonly string[]
  readonly env: Readonly<Record<string, string>>
}

/** A real process that works under leases, to be stopped, killed and cut off. */
export class ClientProcess implements TortureClient {
  readonly name: string
  readonly proxy: TcpProxy
  /** Settles with the code or signal. */
  readonly ended: Promise<number | NodeJS.Signals>
  /** Settles when it has begun to work, or has ended before. */
  readonly ready: Promise<void>
  readonly #begun = Promise.withResolvers<void>()
  readonly #child: ChildProcess
  readonly #waiting: { readonly step: Step; readonly tell: (step: Step | undefined) => void }[] = []
  #isRunning = true

  constructor({ settings, proxy, log, execArgv, env }: ClientStart) {
    this.name = settings.name
    this.proxy = proxy
    const out = openSync(log, 'a')
    this.#child = fork(program, [JSON.stringify(settings)], {
      execArgv: ['--unhandled-rejections=strict', ...execArgv],
      stdio: ['ignore', out, out, 'ipc'],
      // A Ctrl-C in the terminal is not for it.
      detached: true,
      env: { ...process.env, ...env },
    })
    closeSync(out)
    alive.add(this.#child)
    this.#child.on('message', (word: Word) => this.#hear(word))
    // A message to a process that has just been killed does not arrive, which is no news.
    this.#child.on('error', () => {})
    this.ended = this.#untilEnded()
    this.ready = this.#begun.promise
  }

  get pid(): number {
    return this.#child.pid!
  }

  get isRunning(): boolean {
    return this.#isRunning
  }

  tell(order: Order): void {
    this.#send(order)
  }

  untilAt(step: Step): Promise<Step | undefined> {
    if (!this.#isRunning) return Promise.resolve(undefined)
    const { promise, resolve } = Promise.withResolvers<Step | undefined>()
    this.#waiting.push({ step, tell: resolve })
    this.#send({ order: 'arm', step })
    return promise
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  #send(message: Message): void {
    if (this.#isRunning && this.#child.connected) this.#child.send(message, () => {})
  }

  #hear(word: Word): void {
    if (word.say === 'ready') return this.#begun.resolve()
    const place = this.#waiting.findIndex(({ step }) => step === word.step)
    if (place !== -1) this.#waiting.splice(place, 1)[0]!.tell(word.step)
  }

  async #untilEnded(): Promise<number | NodeJS.Signals> {
    const [code, signal] = (await once(this.#child, 'exit')) as [number | null, NodeJS.Signals | null]
    this.#isRunning = false
    this.#begun.resolve()
    alive.delete(this.#child)
    for (const { tell } of this.#waiting.splice(0)) tell(undefined)
    return signal ?? code ?? 0
  }
}

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

/** Those that are still there when this process ends. One listener for all: there may be many. */
const alive = new Set<ChildProcess>()
process.on('exit', () => {
  // A stopped process is killed as well.
  for (const child of alive) child.kill('SIGKILL')
})

/** A process of a measure, which is killed at the end of the scope. */
export class Child implements AsyncDisposable {
  readonly #child: ChildProcess

  private constructor(child: ChildProcess) {
    this.#child = child
    alive.add(child)
  }

  /** Starts `children/NAME.ts` and waits for its first word. */
  static async start(name: string, args: readonly (string | number)[]): Promise<Child> {
    const child = new Child(
      fork(fileURLToPath(new URL(`children/${name}.ts`, import.meta.url)), args.map(String)),
    )
    await child.hear()
    return child
  }

  get pid(): number {
    return this.#child.pid!
  }

  /** What it says next. Throws when it ends without a word. */
  async hear<T>(): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const ended = (code: number | null, signal: string | null): void =>
      reject(new Error(`a process of the measure ended with ${signal ?? code}`))
    const said = (message: unknown): void => resolve(message as T)
    this.#child.once('message', said)
    this.#child.once('exit', ended)
    try {
      return await promise
    } finally {
      this.#child.off('message', said)
      this.#child.off('exit', ended)
    }
  }

  tell(order: string): void {
    this.#child.send(order)
  }

  async ask<T>(question: string): Promise<T> {
    const answer = this.hear<T>()
    this.tell(question)
    return answer
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    alive.delete(this.#child)
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    this.#child.kill('SIGKILL')
    await ended
  }
}

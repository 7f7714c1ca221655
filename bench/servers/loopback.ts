import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Meter, meterOf } from '../meter.ts'

/** Another program's server, on loopback and with a folder of its own. */
export class LoopbackServer implements Meter, AsyncDisposable {
  readonly port: number
  readonly #child: ChildProcess

  constructor(child: ChildProcess, port: number) {
    this.#child = child
    this.port = port
    process.prependListener('exit', this.#kill)
  }

  /** Starts it, and waits until `answers` does not throw. */
  static async start(
    [program, ...args]: readonly [string, ...string[]],
    directory: string,
    port: number,
    answers: () => Promise<unknown>,
  ): Promise<LoopbackServer> {
    const child = spawn(program, args, { cwd: directory, stdio: 'ignore' })
    await once(child, 'spawn')
    const server = new LoopbackServer(child, port)
    for (const giveUpAt = Date.now() + 15_000; ;) {
      try {
        await answers()
        return server
      } catch (error) {
        if (child.exitCode !== null || Date.now() > giveUpAt) {
          await server[Symbol.asyncDispose]()
          throw new Error(`${program} gives no answer`, { cause: error })
        }
        await sleep(50)
      }
    }
  }

  cpuMs(): number | undefined {
    return meterOf(this.#child.pid!, { hasThreads: true }).cpuMs()
  }

  // Nothing that it holds is kept.
  readonly #kill = (): boolean => this.#child.kill('SIGKILL')

  async [Symbol.asyncDispose](): Promise<void> {
    process.off('exit', this.#kill)
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    this.#kill()
    await ended
  }
}

/** Whether a program of that name can be started, which tells its version. */
export function isInstalled(program: string): boolean {
  return spawnSync(program, ['--version'], { stdio: 'ignore' }).status === 0
}

/** A port of loopback that is free at this moment. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (typeof address !== 'object' || address === null) throw new Error('no free port on 127.0.0.1')
  return address.port
}

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
    return meterOf(this.#child.pid!).cpuMs()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    // Nothing that it holds is kept.
    this.#child.kill('SIGKILL')
    await ended
  }
}

/** Where the program is, and its version; undefined where it is not installed. */
export function versionOf(program: string): string | undefined {
  const { status, stdout } = spawnSync(program, ['--version'], { encoding: 'utf8' })
  return status === 0 ? /\d+(\.\d+)+/.exec(stdout)?.[0] : undefined
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

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { onTestFinished } from 'vitest'
import { program } from './main-program.ts'

/** Whether a terminal can be had here: it takes `script` of util-linux. */
export const hasTerminal: boolean =
  process.platform === 'linux' &&
  /util-linux/.test(spawnSync('script', ['--version'], { encoding: 'utf8' }).stdout ?? '')

/** The command line on a terminal of its own. */
export class Terminal {
  readonly #child: ChildProcess
  readonly #closed: Promise<number | null>
  #shown = ''

  constructor(
    args: readonly string[],
    size: { readonly columns: number; readonly rows: number },
    url: string,
  ) {
    const quoted = [...program, ...args].map((word) => `'${word.replaceAll("'", String.raw`'\''`)}'`)
    this.#child = spawn(
      'script',
      ['-qec', `stty cols ${size.columns} rows ${size.rows}; exec ${quoted.join(' ')}`, '/dev/null'],
      { env: { ...process.env, FENCEPOST_DATABASE_URL: url, TERM: 'xterm', NO_COLOR: '1' }, stdio: 'pipe' },
    )
    this.#child.stdout!.setEncoding('utf8').on('data', (text: string) => (this.#shown += text))
    this.#child.stdin!.on('error', () => {})
    const { promise, resolve } = Promise.withResolvers<number | null>()
    this.#closed = promise
    this.#child.once('close', (code) => resolve(code))
    onTestFinished(() => {
      this.#child.kill('SIGKILL')
    })
  }

  /** Everything that was written to it, with all that moves the cursor. */
  get shown(): string {
    return this.#shown
  }

  /** The exit code of the command. */
  get closed(): Promise<number | null> {
    return this.#closed
  }

  /** What somebody types: `\u0003` is Ctrl-C. */
  type(keys: string): void {
    this.#child.stdin!.write(keys)
  }
}

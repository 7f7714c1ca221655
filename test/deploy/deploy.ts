import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { eventually } from '../support/cli.ts'
import type { UserProject } from '../support/user-project.ts'

/** How a deploy has ended. */
export interface DeployEnd {
  readonly code: number | null
  readonly output: string
}

/** One run of a recipe's command in a process of its own: the wrapper, as long as it is a single command. */
export class Deploy {
  readonly closed: Promise<DeployEnd>
  readonly #child: ChildProcess
  #output = ''

  constructor(project: UserProject, folder: string, command: string, env: NodeJS.ProcessEnv) {
    this.#child = spawn('sh', ['-c', `exec ${command}`], {
      cwd: join(project.folder, folder),
      env,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    for (const stream of [this.#child.stdout!, this.#child.stderr!])
      stream.setEncoding('utf8').on('data', (text: string) => (this.#output += text))
    this.closed = new Promise((resolve) =>
      this.#child.once('close', (code) => resolve({ code, output: this.#output })),
    )
    onTestFinished(() => void this.#child.kill('SIGKILL'))
  }

  get output(): string {
    return this.#output
  }

  /** The process that the wrapper has started, by a word of its command line. */
  command(word: string): number {
    const pid = this.#child.pid!
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').trim().split(' ')
    const found = children.find((child) => readFileSync(`/proc/${child}/cmdline`, 'latin1').includes(word))
    if (found === undefined) throw new Error(`none of ${children.join(', ')} is ${word}`)
    return Number(found)
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  /** Waits until it has said the text. Throws when it ends without. */
  async says(text: string): Promise<void> {
    await this.until(`"${text}"`, () => this.#output.includes(text))
  }

  /** Waits until the claim is true. Throws when it ends before. */
  async until(what: string, claim: () => boolean | Promise<boolean>): Promise<void> {
    await eventually(async () => {
      const isOver = this.#child.exitCode !== null
      if (await claim()) return true
      if (isOver) throw new Error(`ended without ${what}:\n${this.#output}`)
      return false
    })
  }
}

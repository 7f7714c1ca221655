import { appendFileSync } from 'node:fs'
import { type FileHandle, open, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Fault, HistoryEvent } from '../history.ts'

const faultsFile = 'nemesis.jsonl'

/** What everybody has written down, read while it is being written. */
export class HistoryFolder {
  readonly #directory: string
  readonly #readTo = new Map<string, number>()

  constructor(directory: string) {
    this.#directory = directory
  }

  fileOf(client: string): string {
    return join(this.#directory, `${client}.jsonl`)
  }

  record(event: Fault): void {
    appendFileSync(join(this.#directory, faultsFile), `${JSON.stringify(event)}\n`)
  }

  /** What has been added since it was asked last. */
  async readOn(): Promise<HistoryEvent[]> {
    const names = (await readdir(this.#directory)).filter((name) => name.endsWith('.jsonl'))
    return (await Promise.all(names.map((name) => this.#readFile(name)))).flat()
  }

  async #readFile(name: string): Promise<HistoryEvent[]> {
    await using file = await open(join(this.#directory, name))
    const text = await readFrom(file, this.#readTo.get(name) ?? 0)
    // A line is there when its end is.
    const whole = text.subarray(0, text.lastIndexOf('\n') + 1)
    this.#readTo.set(name, (this.#readTo.get(name) ?? 0) + whole.length)
    return whole
      .toString('utf8')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as HistoryEvent)
  }
}

async function readFrom(file: FileHandle, from: number): Promise<Buffer> {
  const { size } = await file.stat()
  const text = Buffer.alloc(Math.max(0, size - from))
  const { bytesRead } = await file.read(text, 0, text.length, from)
  return text.subarray(0, bytesRead)
}

import { createHash } from 'node:crypto'

/**
 * Random numbers that come from a seed and a name alone. Everybody who chooses has one of its own, so that what one process has time for
 * does not change what another one chooses.
 */
export class Stream {
  readonly #words: Uint32Array

  constructor(seed: string, name: string) {
    const digest = createHash('sha256').update(`${seed}\n${name}`).digest()
    this.#words = new Uint32Array([0, 4, 8, 12].map((at) => digest.readUInt32LE(at)))
  }

  /** In [0, 1). The generator is xoshiro128**. */
  next(): number {
    const [a, b, c, d] = this.#words as unknown as [number, number, number, number]
    const result = Math.imul(turned(Math.imul(b, 5), 7), 9) >>> 0
    const words = this.#words
    words[2] = c ^ a
    words[3] = d ^ b
    words[1] = b ^ words[2]
    words[0] = a ^ words[3]
    words[2] ^= b << 9
    words[3] = turned(words[3], 11)
    return result / 2 ** 32
  }

  /** A whole number in [from, to]. */
  whole(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1))
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.next() * from.length)]!
  }

  /** All of them, in another order. */
  shuffled<T>(all: readonly T[]): T[] {
    const left = [...all]
    return all.map(() => left.splice(Math.floor(this.next() * left.length), 1)[0]!)
  }
}

function turned(word: number, by: number): number {
  return ((word << by) | (word >>> (32 - by))) >>> 0
}

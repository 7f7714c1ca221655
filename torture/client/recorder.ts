import { closeSync, openSync, writeSync } from 'node:fs'
import type { Answered, Asked, HistoryEvent, Operation, Token, Trusted } from '../history.ts'
import { trueUs } from './clock.ts'

/** Somebody who can be asked whether its term is current. */
interface Claim {
  readonly name: string
  readonly token: bigint
  readonly isHeld: boolean
}

/** A question that took longer was interrupted, and nobody knows on which side of it. */
const maxSampleUs = 1000

/**
 * What this client asked and was told, one line each, written before anything else is done: a process that is killed has told all it knew.
 */
export class Recorder {
  readonly #file: number
  readonly #client: string
  readonly #claims = new Map<Claim, boolean>()
  #ops = 0

  constructor(file: string, client: string) {
    this.#file = openSync(file, 'a')
    this.#client = client
  }

  asked(what: Operation, lease: string, more: { token?: bigint; row?: string } = {}): number {
    this.#ops += 1
    const { token, row } = more
    this.#write({
      kind: 'asked',
      atUs: trueUs(),
      client: this.#client,
      op: this.#ops,
      what,
      lease,
      ...(token === undefined ? {} : { token: token.toString() }),
      ...(row === undefined ? {} : { row }),
    } satisfies Asked)
    return this.#ops
  }

  answered(op: number, outcome: Answered['outcome'], more: { token?: bigint; code?: string } = {}): void {
    const { token, code } = more
    this.#write({
      kind: 'answered',
      atUs: trueUs(),
      client: this.#client,
      op,
      outcome,
      ...(token === undefined ? {} : { token: token.toString() }),
      ...(code === undefined ? {} : { code }),
    } satisfies Answered)
  }

  /** From now on the claim is asked now and then, until it has said no. */
  watch(claim: Claim): void {
    this.#claims.set(claim, false)
    this.#sample(claim)
  }

  /** Asks every claim. */
  sample(): void {
    for (const claim of this.#claims.keys()) this.#sample(claim)
  }

  close(): void {
    closeSync(this.#file)
  }

  #sample(claim: Claim): void {
    const beforeUs = trueUs()
    const { isHeld } = claim
    const atUs = trueUs()
    // Stopped in between: the answer is about a moment before, which would be held against it.
    if (isHeld && atUs - beforeUs > maxSampleUs) return
    const hasClaimed = this.#claims.get(claim) === true
    if (isHeld) this.#claims.set(claim, true)
    else this.#claims.delete(claim)
    if (!isHeld && !hasClaimed) return
    const token: Token = claim.token.toString()
    this.#write({
      kind: 'trusted',
      atUs,
      client: this.#client,
      lease: claim.name,
      token,
      isHeld,
    } satisfies Trusted)
  }

  #write(event: HistoryEvent): void {
    writeSync(this.#file, `${JSON.stringify(event)}\n`)
  }
}

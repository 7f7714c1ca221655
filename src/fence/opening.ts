import type { Client } from 'pg'
import { sendControl, sendControlMessages, takesOwnQueries } from './control-query.ts'
import { type FenceCall, fenceText } from './fence.ts'
import { SessionStatements, processText } from './session-statements.ts'
import type { TransactionWatch } from './transaction-watch.ts'
import { WireMessages } from './wire-messages.ts'

const syncLength = new WireMessages().sync().toBuffer().length

const usual = new WeakMap<FenceCall, { readonly key: string; readonly messages: Buffer }>()

/**
 * What begins a fenced transaction: `begin` and a call of the fence for each term. Without `begin` the transaction is what goes out up to
 * the next Sync, and may go without a call. Where the session keeps statements, the fence is one of them; where that is not known yet, the session is
 * asked along with it.
 */
export class Opening {
  readonly #begin: string | undefined
  readonly #calls: readonly FenceCall[]
  readonly #statements: SessionStatements | undefined
  readonly #name: string | undefined
  readonly #asksForProcess: boolean

  constructor(client: Client, begin: string | undefined, calls: readonly FenceCall[]) {
    this.#begin = begin
    this.#calls = calls
    this.#statements = takesOwnQueries(client) ? SessionStatements.of(client) : undefined
    this.#name = calls.length === 0 ? undefined : this.#statements?.nameFor(fenceText)
    this.#asksForProcess = this.#statements?.isToAsk() === true
  }

  /** Whether the fence goes out under its name. */
  get isNamed(): boolean {
    return this.#name !== undefined
  }

  /** All of it in one text. */
  get text(): string {
    return this.#texts.join('; ')
  }

  get #texts(): string[] {
    const texts = this.#calls.map(({ literal }) => literal)
    if (this.#begin !== undefined) texts.unshift(this.#begin)
    if (this.#asksForProcess) texts.push(processText)
    return texts
  }

  /** How many commands it is. */
  get length(): number {
    return (this.#begin === undefined ? 0 : 1) + this.#calls.length + (this.#asksForProcess ? 1 : 0)
  }

  /** All of it in messages, without a Sync. */
  get messages(): Buffer {
    return this.messagesToSync.subarray(0, -syncLength)
  }

  /** The same with one. */
  get messagesToSync(): Buffer {
    const name = this.#name
    if (name === undefined) {
      const messages = new WireMessages()
      for (const text of this.#texts) messages.parse('', text).execute('')
      return messages.sync().toBuffer()
    }
    const [call] = this.#calls
    if (!this.#statements!.has(name) || call === undefined || this.#calls.length > 1) return this.#named(name)
    // Every transaction of a term begins with the same.
    const key = `${name} ${this.#begin ?? ''}`
    let known = usual.get(call)
    if (known?.key !== key) {
      known = { key, messages: this.#named(name) }
      usual.set(call, known)
    }
    return known.messages
  }

  #named(name: string): Buffer {
    const messages = new WireMessages()
    if (this.#begin !== undefined) messages.parse('', this.#begin).execute('')
    // It may be there all the same, from an opening that failed.
    if (!this.#statements!.has(name)) messages.forget(name).parse(name, fenceText)
    for (const { values } of this.#calls) messages.execute(name, values)
    return messages.sync().toBuffer()
  }

  /** It was carried out; the value is the last that it has answered. */
  succeeded(value: unknown): void {
    if (this.#name !== undefined) this.#statements!.keeps(this.#name)
    if (this.#asksForProcess) this.#statements!.answeredBy(value)
  }

  /** Whether it failed only because the session does not keep the statement any more: then another one begins without it. */
  isGone(error: unknown): boolean {
    return this.isNamed && this.#statements!.isGone(error)
  }
}

/** Begins a fenced transaction without a statement of its work. */
export async function sendOpening(
  client: Client,
  watch: TransactionWatch,
  begin: string,
  calls: readonly FenceCall[],
): Promise<void> {
  const opening = new Opening(client, begin, calls)
  try {
    await watch.expecting(async () => {
      const { value } = opening.isNamed
        ? await sendControlMessages(client, opening.messagesToSync)
        : await sendControl(client, opening.text)
      opening.succeeded(value)
    })
  } catch (error) {
    if (!opening.isGone(error)) throw error
    await client.query('rollback')
    await sendOpening(client, watch, begin, calls)
  }
}

import type {
  Answered,
  Asked,
  Change,
  Committed,
  Fault,
  HistoryEvent,
  HolderChange,
  LeaseChange,
  RowChange,
  Trusted,
  WriteChange,
} from '../history.ts'

/** A change, and the transaction that made it. */
export interface Logged<C extends Change> {
  readonly change: C
  readonly by: Committed
}

export interface Request {
  readonly asked: Asked
  /** Undefined: nobody was told, because the client was killed. */
  readonly answered: Answered | undefined
}

/** One grant, and what became of it. */
export interface Term {
  readonly lease: string
  readonly token: bigint
  readonly grant: Logged<LeaseChange>
  readonly grantedAtUs: number
  readonly holderId: string
  /** Undefined: the holder had joined before the history began. */
  readonly holder: HolderLife | undefined
  /** As it was at the grant. */
  readonly holderThen: HolderChange | undefined
  /** The lease just before, and who held it then, as that one was. */
  readonly rowBefore: Logged<LeaseChange> | undefined
  readonly formerHolderThen: Logged<HolderChange> | undefined
  /** The term that the lease's row named before. */
  readonly former: Term | undefined
  next: Term | undefined
  /** Its end by the clock, as far as the lease itself says so. Null: none. */
  deadlineUs: number | null
  /** The holder was taken out of the lease's row, and nobody put in. */
  freed: Logged<LeaseChange> | undefined
  /** Acquires that were told of its token. */
  readonly told: Request[]
  /** Requests of its own client to give it back. */
  readonly givenBack: Request[]
}

export interface HolderLife {
  readonly id: string
  readonly client: string
  readonly ttlUs: number
  readonly steps: Logged<HolderChange>[]
  ended: Logged<HolderChange> | undefined
}

/** A write, and how the lease was when it was committed. */
export interface LoggedWrite<C extends WriteChange | RowChange> extends Logged<C> {
  readonly row: LeaseChange | undefined
  readonly current: Term | undefined
}

/** One step of a lease's row by which it lost its holder, or got another one without a grant. */
export interface LeaseStep extends Logged<LeaseChange> {
  readonly before: Logged<LeaseChange>
  readonly term: Term | undefined
  readonly holderThen: HolderChange | undefined
}

/** A history, read once: what belongs together, and how everything was when something else was committed. */
export class HistoryIndex {
  readonly events: readonly HistoryEvent[]
  readonly transactions: readonly Committed[]
  readonly requests: readonly Request[]
  /** Answers that belong to no question, or to one that has been answered. */
  readonly strayAnswers: readonly Answered[]
  readonly samples: readonly Trusted[]
  readonly faults: readonly Fault[]
  /** In the order of the commits. */
  readonly terms: readonly Term[]
  readonly holders: readonly HolderLife[]
  readonly writes: readonly LoggedWrite<WriteChange>[]
  readonly rowChanges: readonly LoggedWrite<RowChange>[]
  readonly freeings: readonly LeaseStep[]
  readonly changesOfHands: readonly LeaseStep[]
  /** The latest time in it. */
  readonly endUs: number
  readonly startUs: number
  readonly #terms: ReadonlyMap<string, Term>
  readonly #requests: ReadonlyMap<string, Request>
  readonly #acquires = new Map<string, Request[]>()
  readonly #releases = new Map<string, Request[]>()

  constructor(events: readonly HistoryEvent[]) {
    this.events = events
    this.transactions = events.filter((event) => event.kind === 'committed')
    this.samples = events.filter((event) => event.kind === 'trusted')
    this.faults = events.filter((event) => event.kind === 'fault')
    const questions = pairUp(events)
    this.requests = [...questions.requests.values()]
    this.strayAnswers = questions.stray
    this.#requests = questions.requests
    const replay = new Replay()
    for (const transaction of this.transactions) replay.add(transaction)
    this.terms = replay.terms
    this.holders = replay.holders
    this.writes = replay.writes
    this.rowChanges = replay.rowChanges
    this.freeings = replay.freeings
    this.changesOfHands = replay.changesOfHands
    this.#terms = replay.byToken
    this.startUs = events.reduce((least, { atUs }) => Math.min(least, atUs), Number.POSITIVE_INFINITY)
    this.endUs = events.reduce((most, { atUs }) => Math.max(most, atUs), Number.NEGATIVE_INFINITY)
    for (const request of this.requests) this.#file(request)
    for (const list of [...this.#acquires.values(), ...this.#releases.values()]) {
      list.sort((a, b) => a.asked.atUs - b.asked.atUs)
    }
  }

  /** The first term of this lease with this token. */
  term(lease: string, token: string): Term | undefined {
    return this.#terms.get(`${token}\n${lease}`)
  }

  request(client: string, op: number): Request | undefined {
    return this.#requests.get(`${op}\n${client}`)
  }

  /** What a client has asked for a lease, in the order of time. */
  acquires(client: string, lease: string): readonly Request[] {
    return this.#acquires.get(`${client}\n${lease}`) ?? []
  }

  /** Requests of all clients to release a lease, in the order of time. */
  releases(lease: string): readonly Request[] {
    return this.#releases.get(lease) ?? []
  }

  #file(request: Request): void {
    const { asked, answered } = request
    if (asked.what === 'release') {
      listIn(this.#releases, asked.lease).push(request)
      const term = asked.token === undefined ? undefined : this.term(asked.lease, asked.token)
      if (term?.holder?.client === asked.client) term.givenBack.push(request)
    }
    if (asked.what !== 'acquire') return
    listIn(this.#acquires, `${asked.client}\n${asked.lease}`).push(request)
    if (answered?.outcome === 'won' && answered.token !== undefined) {
      this.term(asked.lease, answered.token)?.told.push(request)
    }
  }
}

function pairUp(events: readonly HistoryEvent[]): { requests: Map<string, Request>; stray: Answered[] } {
  const requests = new Map<string, { asked: Asked; answered: Answered | undefined }>()
  const stray: Answered[] = []
  for (const event of events) {
    if (event.kind === 'asked')
      requests.set(`${event.op}\n${event.client}`, { asked: event, answered: undefined })
  }
  for (const event of events) {
    if (event.kind !== 'answered') continue
    const request = requests.get(`${event.op}\n${event.client}`)
    if (request === undefined || request.answered !== undefined) stray.push(event)
    else request.answered = event
  }
  return { requests, stray }
}

/** Follows the rows as they change. */
class Replay {
  readonly terms: Term[] = []
  readonly holders: HolderLife[] = []
  readonly writes: LoggedWrite<WriteChange>[] = []
  readonly rowChanges: LoggedWrite<RowChange>[] = []
  readonly freeings: LeaseStep[] = []
  readonly changesOfHands: LeaseStep[] = []
  readonly byToken = new Map<string, Term>()
  readonly #rows = new Map<string, Logged<LeaseChange>>()
  readonly #latest = new Map<string, Term>()
  readonly #lives = new Map<string, HolderLife>()
  readonly #now = new Map<string, Logged<HolderChange>>()

  add(by: Committed): void {
    for (const change of by.changes) {
      switch (change.table) {
        case 'lease':
          this.#lease({ change, by })
          break
        case 'holder':
          this.#holder({ change, by })
          break
        case 'write':
          this.writes.push({ change, by, ...this.#standing(change.lease) })
          break
        case 'row':
          this.rowChanges.push({ change, by, ...this.#standing(change.lease) })
      }
    }
  }

  #standing(lease: string): { row: LeaseChange | undefined; current: Term | undefined } {
    return { row: this.#rows.get(lease)?.change, current: this.#latest.get(lease) }
  }

  #holder(logged: Logged<HolderChange>): void {
    const { change } = logged
    let life = this.#lives.get(change.id)
    if (life === undefined) {
      life = { id: change.id, client: change.label, ttlUs: change.ttlUs, steps: [], ended: undefined }
      this.#lives.set(change.id, life)
      this.holders.push(life)
    }
    life.steps.push(logged)
    if (change.endedAtUs !== null) life.ended ??= logged
    this.#now.set(change.id, logged)
  }

  #lease(logged: Logged<LeaseChange>): void {
    const { change } = logged
    const before = this.#rows.get(change.name)
    if (change.how === 'delete') this.#rows.delete(change.name)
    else this.#rows.set(change.name, logged)
    const term = this.#latest.get(change.name)
    if (change.how === 'delete' || change.holderId === null) {
      const formerId = before?.change.holderId ?? null
      if (before === undefined || formerId === null) return
      if (term !== undefined) term.freed ??= logged
      this.freeings.push({
        ...logged,
        before,
        term,
        holderThen: this.#now.get(formerId)?.change,
      })
      return
    }
    if (before === undefined || before.change.token !== change.token) {
      this.#grant(logged, before, term)
    } else if (before.change.holderId !== change.holderId) {
      this.changesOfHands.push({
        ...logged,
        before,
        term,
        holderThen: this.#now.get(change.holderId)?.change,
      })
    } else if (term !== undefined) {
      term.deadlineUs = change.deadlineUs
    }
  }

  #grant(
    grant: Logged<LeaseChange>,
    rowBefore: Logged<LeaseChange> | undefined,
    former: Term | undefined,
  ): void {
    const { name, token, holderId, grantedAtUs, deadlineUs } = grant.change
    const formerId = rowBefore?.change.holderId
    const term: Term = {
      lease: name,
      token: BigInt(token),
      grant,
      grantedAtUs: grantedAtUs ?? grant.by.atUs,
      holderId: holderId!,
      holder: this.#lives.get(holderId!),
      holderThen: this.#now.get(holderId!)?.change,
      rowBefore,
      formerHolderThen: formerId == null ? undefined : this.#now.get(formerId),
      former,
      next: undefined,
      deadlineUs,
      freed: undefined,
      told: [],
      givenBack: [],
    }
    if (former !== undefined) former.next = term
    this.terms.push(term)
    this.#latest.set(name, term)
    const key = `${token}\n${name}`
    if (!this.byToken.has(key)) this.byToken.set(key, term)
  }
}

export function listIn<Key, Value>(map: Map<Key, Value[]>, key: Key): Value[] {
  const known = map.get(key)
  if (known !== undefined) return known
  const fresh: Value[] = []
  map.set(key, fresh)
  return fresh
}

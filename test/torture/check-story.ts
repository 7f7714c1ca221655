import { check } from '../../torture/check/check.ts'
import type { CheckOptions, ViolationKind } from '../../torture/check/check.ts'
import type {
  Answered,
  Asked,
  Change,
  HistoryEvent,
  HolderChange,
  LeaseChange,
} from '../../torture/history.ts'

const start = Date.UTC(2026, 0, 1) * 1000

/** A history that is told event by event, with times in milliseconds from its beginning. */
export class Story {
  readonly events: HistoryEvent[] = []
  readonly #leases = new Map<string, LeaseChange>()
  readonly #holders = new Map<string, HolderChange>()
  readonly #ops = new Map<string, number>()
  #ms = 0

  /** What follows happens then. */
  at(ms: number): this {
    this.#ms = ms
    return this
  }

  ask(client: string, what: Asked['what'], lease = '', more: { token?: number; row?: string } = {}): number {
    const op = (this.#ops.get(client) ?? 0) + 1
    this.#ops.set(client, op)
    const token = more.token === undefined ? {} : { token: `${more.token}` }
    const row = more.row === undefined ? {} : { row: more.row }
    this.events.push({ kind: 'asked', atUs: this.#us(), client, op, what, lease, ...token, ...row })
    return op
  }

  tell(client: string, op: number, outcome: Answered['outcome'], token?: number): void {
    const more = token === undefined ? {} : { token: `${token}` }
    this.events.push({ kind: 'answered', atUs: this.#us(), client, op, outcome, ...more })
  }

  trust(client: string, lease: string, token: number, isHeld = true): void {
    this.events.push({ kind: 'trusted', atUs: this.#us(), client, lease, token: `${token}`, isHeld })
  }

  fault(fault: string, phase: 'begins' | 'ends', target: string): void {
    this.events.push({ kind: 'fault', atUs: this.#us(), fault, phase, target })
  }

  commit(...changes: Change[]): void {
    const number = this.events.length + 1
    this.events.push({
      kind: 'committed',
      atUs: this.#us(),
      lsn: `0/${number.toString(16)}`,
      xid: `${number}`,
      changes,
    })
  }

  /** A change of a lease's row, of which the rest stays as it is. Times are in milliseconds. */
  lease(
    name: string,
    row: {
      token?: number
      holder?: string | null
      grantedMs?: number
      deadlineMs?: number
      availableMs?: number
    },
  ): LeaseChange {
    const before = this.#leases.get(name)
    const us = (ms: number | undefined): number | undefined =>
      ms === undefined ? undefined : start + ms * 1000
    const after: LeaseChange = {
      table: 'lease',
      how: before === undefined ? 'insert' : 'update',
      name,
      token: `${row.token ?? before?.token ?? 0}`,
      holderId: row.holder === undefined ? (before?.holderId ?? null) : row.holder,
      grantedAtUs: us(row.grantedMs) ?? before?.grantedAtUs ?? this.#us(),
      deadlineUs: us(row.deadlineMs) ?? null,
      availableAtUs: us(row.availableMs) ?? before?.availableAtUs ?? null,
    }
    this.#leases.set(name, after)
    return after
  }

  /** A change of a holder's row: by default its client is what comes before the slash of its id, and it lives for a second from now. */
  holder(
    id: string,
    row: { expiresMs?: number; endedMs?: number | null; how?: HolderChange['how'] } = {},
  ): HolderChange {
    const before = this.#holders.get(id)
    const { expiresMs, endedMs, how } = row
    const after: HolderChange = {
      table: 'holder',
      how: how ?? (before === undefined ? 'insert' : 'update'),
      id,
      label: id.split('/')[0]!,
      ttlUs: 1_000_000,
      expiresAtUs:
        expiresMs === undefined ? (before?.expiresAtUs ?? this.#us() + 1_000_000) : start + expiresMs * 1000,
      endedAtUs:
        endedMs === undefined
          ? (before?.endedAtUs ?? null)
          : endedMs === null
            ? null
            : start + endedMs * 1000,
    }
    this.#holders.set(id, after)
    return after
  }

  join(...ids: string[]): void {
    for (const id of ids) this.commit(this.holder(id))
  }

  beat(id: string): void {
    this.commit(this.holder(id, { expiresMs: this.#ms + 1000 }))
  }

  /** A grant of now, and the holders that the taker has ended for it. */
  grant(name: string, token: number, holder: string, ...ended: string[]): void {
    this.commit(
      ...ended.map((id) => this.holder(id, { endedMs: this.#ms })),
      this.lease(name, { token, holder, grantedMs: this.#ms }),
    )
  }

  free(name: string): void {
    this.commit(this.lease(name, { holder: null }))
  }

  /** Asked for, granted and told, all of it now. */
  acquire(client: string, lease: string, token: number, ...ended: string[]): void {
    const op = this.ask(client, 'acquire', lease)
    this.grant(lease, token, client, ...ended)
    this.tell(client, op, 'won', token)
  }

  /** Asked for, freed and told, all of it now. */
  release(client: string, lease: string, token: number): void {
    const op = this.ask(client, 'release', lease, { token })
    this.free(lease)
    this.tell(client, op, 'won', token)
  }

  write(client: string, op: number, lease: string, token: number, row = 'r'): Change {
    return { table: 'write', lease, token: `${token}`, row, client, op }
  }

  row(row: string, lease: string, stamp: number | null): Change {
    return { table: 'row', row, lease, stamp: stamp === null ? null : `${stamp}` }
  }

  us(ms: number): number {
    return start + ms * 1000
  }

  #us(): number {
    return start + this.#ms * 1000
  }
}

/** What the story is condemned for. */
export function kindsOf(story: Story, options?: CheckOptions): ViolationKind[] {
  return check(story.events, options).violations.map(({ kind }) => kind)
}

import type { Change, HolderChange, LeaseChange } from '../history.ts'
import { type Columns, type Line, durationUs, timeUs } from './test-decoding.ts'

type ChangeLine = Line & { readonly kind: 'change' }

/** The tables that the judge wants to hear about. */
export const watchedTables: readonly string[] = [
  'fencepost.lease',
  'fencepost.holder',
  'torture.write',
  'torture.row',
]

/**
 * The rows as they are after what has been read. The log leaves out what is not new: of a deleted row everything but its key, and of a
 * changed row a long value that has stayed the same.
 */
export class KnownRows {
  readonly #leases = new Map<string, LeaseChange>()
  readonly #holders = new Map<string, HolderChange>()

  /** Undefined: nothing that the judge wants to hear about. */
  apply({ table, how, columns }: ChangeLine): Change | undefined {
    if (!watchedTables.includes(table)) return undefined
    if (how === 'truncate') throw new Error(`${table} was truncated: nobody can say what was in it`)
    switch (table) {
      case 'fencepost.lease':
        return this.#lease(how, columns)
      case 'fencepost.holder':
        return this.#holder(how, columns)
      case 'torture.write':
        if (how !== 'insert') throw new Error(`${table} is only ever added to, and somebody did: ${how}`)
        return {
          table: 'write',
          lease: text(columns, 'lease'),
          token: text(columns, 'token'),
          row: text(columns, 'row'),
          client: text(columns, 'client'),
          op: Number(text(columns, 'op')),
        }
      default:
        if (how === 'delete') return undefined
        return {
          table: 'row',
          row: text(columns, 'row'),
          lease: text(columns, 'lease'),
          stamp: columns.get('stamp') ?? null,
        }
    }
  }

  #lease(how: LeaseChange['how'], columns: Columns): LeaseChange | undefined {
    const name = text(columns, 'name')
    const before = this.#leases.get(name)
    if (how === 'delete') {
      this.#leases.delete(name)
      return before && { ...before, how }
    }
    const after: LeaseChange = {
      table: 'lease',
      how,
      name,
      token: text(columns, 'token'),
      holderId: nullable(columns, 'holder_id'),
      grantedAtUs: time(columns, 'granted_at'),
      deadlineUs: time(columns, 'deadline'),
      availableAtUs: time(columns, 'available_at'),
    }
    this.#leases.set(name, after)
    return after
  }

  #holder(how: HolderChange['how'], columns: Columns): HolderChange | undefined {
    const id = text(columns, 'id')
    const before = this.#holders.get(id)
    if (how === 'delete') {
      this.#holders.delete(id)
      return before && { ...before, how }
    }
    const after: HolderChange = {
      table: 'holder',
      how,
      id,
      // Nothing bounds its length, so it may be kept apart from the row.
      label: columns.has('label') || before === undefined ? text(columns, 'label') : before.label,
      ttlUs: durationUs(text(columns, 'ttl')),
      expiresAtUs: timeUs(text(columns, 'expires_at')) ?? Number.POSITIVE_INFINITY,
      endedAtUs: time(columns, 'ended_at'),
    }
    this.#holders.set(id, after)
    return after
  }
}

function nullable(columns: Columns, name: string): string | null {
  const value = columns.get(name)
  if (value === undefined) throw new Error(`The log says nothing of the column ${name}.`)
  return value
}

function text(columns: Columns, name: string): string {
  const value = nullable(columns, name)
  if (value === null) throw new Error(`The log says that the column ${name} is null.`)
  return value
}

/** Null: never, or always. */
function time(columns: Columns, name: string): number | null {
  const value = nullable(columns, name)
  return value === null ? null : timeUs(value)
}

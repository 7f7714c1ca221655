/** The values of a row as PostgreSQL writes them, by column. One that is absent is as it was before. */
export type Columns = ReadonlyMap<string, string | null>

/** What the plugin `test_decoding` says in one row of its output, with transaction ids and times, in UTC. */
export type Line =
  | { readonly kind: 'begin' }
  | { readonly kind: 'commit'; readonly xid: string; readonly atUs: number }
  | {
      readonly kind: 'change'
      /** With the schema, and without quotes. */
      readonly table: string
      readonly how: 'insert' | 'update' | 'delete' | 'truncate'
      /** Of a delete: the key alone. */
      readonly columns: Columns
    }

export function parseLine(data: string): Line {
  if (data.startsWith('BEGIN')) return { kind: 'begin' }
  if (data.startsWith('COMMIT')) {
    const [, xid, at] = /^COMMIT (\d+) \(at (.+)\)$/.exec(data) ?? unreadable(data)
    return { kind: 'commit', xid: xid!, atUs: timeUs(at!) ?? unreadable(data) }
  }
  const [head, table, how] = /^table (.+?): (INSERT|UPDATE|DELETE|TRUNCATE):/.exec(data) ?? unreadable(data)
  return {
    kind: 'change',
    table: table!.replaceAll('"', ''),
    how: how!.toLowerCase() as 'insert' | 'update' | 'delete' | 'truncate',
    columns: how === 'TRUNCATE' ? new Map() : parseColumns(data, head.length),
  }
}

/** `name[type]:value`, separated by blanks. Values are quoted, except for numbers, booleans and what is not there. */
function parseColumns(data: string, from: number): Columns {
  const columns = new Map<string, string | null>()
  if (data.endsWith(': (no-tuple-data)')) return columns
  let at = from
  while (at < data.length) {
    at += 1
    // Where the key has changed, the old one comes first.
    if (data.startsWith('old-key:', at)) at += 'old-key: '.length
    if (data.startsWith('new-tuple:', at)) {
      at += 'new-tuple: '.length
      columns.clear()
    }
    const name = data[at] === '"' ? quoted(data, at, '"') : plain(data, at, '[')
    const type = data.indexOf(']:', name.end)
    if (data[name.end] !== '[' || type < 0) unreadable(data)
    at = type + 2
    if (data[at] === "'") {
      const value = quoted(data, at, "'")
      columns.set(name.text, value.text)
      at = value.end
    } else {
      const value = plain(data, at, ' ')
      if (value.text !== 'unchanged-toast-datum')
        columns.set(name.text, value.text === 'null' ? null : value.text)
      at = value.end
    }
  }
  return columns
}

interface Word {
  readonly text: string
  /** The place after it. */
  readonly end: number
}

function plain(data: string, from: number, until: string): Word {
  const end = data.indexOf(until, from)
  return end < 0 ? { text: data.slice(from), end: data.length } : { text: data.slice(from, end), end }
}

function quoted(data: string, from: number, quote: string): Word {
  let end = data.indexOf(quote, from + 1)
  while (end >= 0 && data[end + 1] === quote) end = data.indexOf(quote, end + 2)
  if (end < 0) unreadable(data)
  return { text: data.slice(from + 1, end).replaceAll(quote + quote, quote), end: end + 1 }
}

/** Microseconds since 1970. Null: infinity, in either direction. */
export function timeUs(text: string): number | null {
  if (text === 'infinity' || text === '-infinity') return null
  const match = /^(\d{4,6})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\+00$/.exec(text)
  if (match === null) return unreadable(text)
  const [year, month, day, hours, minutes, seconds] = match.slice(1, 7).map(Number) as [
    number,
    number,
    number,
    number,
    number,
    number,
  ]
  return (
    Date.UTC(year, month - 1, day, hours, minutes, seconds) * 1000 + Number((match[7] ?? '').padEnd(6, '0'))
  )
}

/** Microseconds of an interval in the form of ISO 8601. Months have no fixed length and are refused. */
export function durationUs(text: string): number {
  const match = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?$/.exec(text)
  if (match === null) return unreadable(text)
  const [days, hours, minutes, seconds] = match.slice(1, 5).map((part) => Number(part ?? 0)) as [
    number,
    number,
    number,
    number,
  ]
  return (
    (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000 +
    Number((match[5] ?? '').padEnd(6, '0'))
  )
}

function unreadable(text: string): never {
  throw new Error(`test_decoding has said something unexpected: ${text.slice(0, 200)}`)
}

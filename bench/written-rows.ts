import { createHash } from 'node:crypto'
import type { Client } from 'pg'

/**
 * Copies a row that fencepost's functions have written, so often, with some columns changed: SQL expressions in which `n` counts from 1. For
 * numbers of leases, holders and waiters that would take too long, or too many processes, to come about by themselves.
 */
async function copyRow(
  db: Client,
  table: string,
  where: string,
  changes: Readonly<Record<string, string>>,
  count: number,
): Promise<void> {
  // Of numbers that the table gives out itself each row gets its own.
  const { rows } = await db.query<{ name: string }>(
    `select quote_ident(attname) as name from pg_attribute
      where attrelid = $1::regclass and attnum > 0 and not attisdropped and attidentity = '' and attgenerated = ''`,
    [table],
  )
  const names = rows.map(({ name }) => name)
  const values = names.map((name) => changes[name] ?? `r.${name}`)
  await db.query(
    `insert into ${table} (${names.join(', ')})
     select ${values.join(', ')} from (select * from ${table} where ${where}) r, generate_series(1, ${count}) n order by n`,
  )
}

/** Leases `lease-1` … that nobody holds, beside `lease-0`, which has been used. */
export async function writeLeases(db: Client, count: number): Promise<void> {
  await copyRow(db, 'fencepost.lease', `name = 'lease-0'`, { name: `'lease-' || n` }, count)
  await settle(db)
}

/** The id of a holder that was written. */
export function holderId(n: number): string {
  const hex = createHash('md5').update(`holder-${n}`).digest('hex')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}

/** Holders 0 … that live for a day without a heartbeat. */
export async function writeHolders(db: Client, count: number): Promise<void> {
  await db.query(`select fencepost.join_holder($1, 'bench', 'bench', 1, '{}', 86400000)`, [holderId(0)])
  await copyRow(
    db,
    'fencepost.holder',
    `id = '${holderId(0)}'`,
    { id: `md5('holder-' || n)::uuid` },
    count - 1,
  )
}

/** A lease `held-N` for each of so many holders. */
export async function writeHeldLeases(db: Client, count: number): Promise<void> {
  const { rows } = await db.query<{ token: string }>(`select token from fencepost.acquire($1, $2)`, [
    ['held-0'],
    holderId(0),
  ])
  const { token } = rows[0]!
  const changes = { name: `'held-' || n`, token: `${token} + n`, holder_id: `md5('holder-' || n)::uuid` }
  await copyRow(db, 'fencepost.lease', `name = 'held-0'`, changes, count - 1)
  await db.query(`select fencepost.raise_token_floor('default', $1)`, [Number(token) + count])
  await settle(db)
}

/** Holders 1 to so many stand in line for a lease, in this order. Holder 1 has asked for it already. */
export async function writeLine(db: Client, lease: string, count: number): Promise<void> {
  const where = `lease = '${lease}' and holder_id = '${holderId(1)}'`
  await copyRow(db, 'fencepost.waiter', where, { holder_id: `md5('holder-' || n + 1)::uuid` }, count - 1)
  await settle(db)
}

/** What the writing has left to be done must not fall to what is measured. */
async function settle(db: Client): Promise<void> {
  await db.query('vacuum analyze fencepost.lease, fencepost.holder, fencepost.waiter')
  await db.query('checkpoint')
}

// Every line under a mark of an expected error must be refused by the compiler, and every other line accepted. This
// file is type-checked and never run.
import type { Generated, Kysely } from 'kysely'
import type { Pool } from 'pg'
import { type Fence, type Fencepost, FencedRepository, type Lease, type Token } from '../../src/index.ts'

interface Tables {
  accounts: { id: number; status: 'due' | 'settled'; note: string | null; fence_token: Generated<string> }
  shares: { account: number; holder: string; part: number; guard: Generated<string> }
  plain: { id: number; text: string }
}

declare const db: Kysely<Tables>
declare const pool: Pool
declare const fencepost: Fencepost
declare const lease: Lease
declare const fence: Fence

class Accounts extends FencedRepository<Tables, 'accounts'> {
  settle(under: Fence, id: number) {
    return this.update(under, id, { status: 'settled' })
  }
}

export async function accepted(): Promise<void> {
  const accounts = new Accounts(db, 'accounts', { key: 'id' })
  await accounts.settle(lease, 1)
  const row = await accounts.insert(fence, { id: 1, status: 'due', note: null })
  const status: 'due' | 'settled' = row.status
  await accounts.updateWhere(lease, (eb) => eb('status', '=', status), { note: 'x' })
  await lease.transaction(db, async (tx) => {
    await accounts.settle(tx, 1)
    await accounts.findForUpdate(tx, 1)
    await tx.selectFrom('accounts').selectAll().execute()
  })
  await lease.transaction(pool, (client) => client.query('select 1'))
  const shares = new FencedRepository<Tables, 'shares', 'account' | 'holder', 'guard'>(db, 'shares', {
    key: ['account', 'holder'],
    fenceColumn: 'guard',
  })
  await shares.update(lease, { account: 1, holder: 'a' }, { part: 2 })
  const token: bigint = lease.token
  const branded: Token = lease.token
  await fencepost.acquire('a', { ttl: '30s', wait: 500 })
  void [token, branded]
}

export async function refused(): Promise<void> {
  const accounts = new Accounts(db, 'accounts', { key: 'id' })

  // There is no write without a fence.
  // @ts-expect-error
  await accounts.update(1, { status: 'settled' })
  // @ts-expect-error
  await accounts.insert({ id: 1, status: 'due', note: null })
  // @ts-expect-error
  await accounts.delete(1)
  // @ts-expect-error
  await accounts.update(db, 1, { status: 'settled' })
  // @ts-expect-error
  await accounts.update(undefined, 1, { status: 'settled' })
  await db.transaction().execute(async (tx) => {
    // @ts-expect-error An ordinary transaction is no fence.
    await accounts.update(tx, 1, { status: 'settled' })
  })

  // The fence column is the repository's.
  // @ts-expect-error
  await accounts.update(lease, 1, { fence_token: '7' })
  // @ts-expect-error
  await accounts.insert(lease, { id: 1, status: 'due', note: null, fence_token: '7' })

  // The user's own types hold.
  // @ts-expect-error
  await accounts.update(lease, 'one', { status: 'settled' })
  // @ts-expect-error
  await accounts.update(lease, 1, { status: 'unheard of' })
  // @ts-expect-error
  await accounts.update(lease, 1, { colour: 'red' })
  // @ts-expect-error
  await accounts.insert(lease, { id: 1 })
  // @ts-expect-error
  await accounts.updateWhere(lease, (eb) => eb('colour', '=', 'red'), { status: 'due' })
  // @ts-expect-error
  new FencedRepository(db, 'unknown', { key: 'id' })
  // @ts-expect-error
  new FencedRepository(db, 'accounts', { key: 'number' })
  // @ts-expect-error A table without fence_token has to name its fence column.
  new FencedRepository(db, 'shares', { key: ['account', 'holder'] })
  // @ts-expect-error And it must be one of its columns.
  new FencedRepository(db, 'plain', { key: 'id', fenceColumn: 'fence_token' })
  const shares = new FencedRepository(db, 'shares', { key: ['account', 'holder'], fenceColumn: 'guard' })
  // @ts-expect-error A composite key is given whole.
  await shares.update(lease, { account: 1 }, { part: 2 })
  // @ts-expect-error
  await shares.update(lease, 1, { part: 2 })

  // Durations say their unit.
  // @ts-expect-error
  await fencepost.acquire('a', { ttl: '30' })
  // @ts-expect-error
  await fencepost.acquire('a', { ttl: '30 parsecs' })
  // @ts-expect-error A plain number is no token.
  const token: Token = 34n
  void token
}

import { load } from '../rounds.ts'
import type { Maker } from './maker.ts'

/**
 * The least that a durable lease in a row can be, written by hand for one case: a prepared UPDATE that takes it, with an expiry and a token that the
 * row itself counts, and one that gives it back without waiting for the disk. Nobody can wait for it, nothing renews it, no two
 * tokens of different leases can be compared, and nothing is shared between callers.
 */
export const byHand: Maker = async ({ server }) => {
  await server.db.query(
    `create table by_hand (id integer primary key, token bigint not null default 0, holder uuid, expires_at timestamptz)
       with (fillfactor = 50)`,
  )
  await server.db.query('insert into by_hand (id) select n from generate_series(0, 1023) n')
  const holder = crypto.randomUUID()
  const take = {
    name: 'take',
    text: `update by_hand set token = token + 1, holder = $2, expires_at = clock_timestamp() + interval '30 s'
            where id = $1 and (holder is null or expires_at < clock_timestamp()) returning token`,
  }
  const give = {
    name: 'give',
    text: 'update by_hand set holder = null where id = $1 and token = $2 and holder = $3',
  }
  return [
    {
      name: 'by hand',
      server,
      durability: 'durable',
      run(workers, forMs) {
        const pool = server.pool(workers)
        const careless = server.pool(workers, { options: '-c synchronous_commit=off' })
        return load(workers, forMs, async (worker) => {
          const { rows } = await pool.query<{ token: string }>({ ...take, values: [worker, holder] })
          await careless.query({ ...give, values: [worker, rows[0]!.token, holder] })
        })
      },
    },
  ]
}

// The least that a program needs to be granted a lease: `pg`, and the two statements that fencepost sends for it.
// Says "granted" and ends at once. JavaScript, like what is compared with it: taking types away costs time of its own.
import { randomUUID } from 'node:crypto'
import { Client } from 'pg'

const client = new Client({ connectionString: process.env.FENCEPOST_DATABASE_URL })
await client.connect()
const holder = randomUUID()
await client.query(
  'select fencepost.join_holder($1::uuid, $2::text, $3::text, $4::integer, $5::jsonb, $6::bigint)',
  [holder, 'bare', 'bench', process.pid, '{}', 30_000],
)
await client.query('select * from fencepost.acquire($1::text[], $2::uuid)', [[process.argv[2]], holder])
process.stdout.write('granted\n', () => process.exit(0))

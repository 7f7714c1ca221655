// Applies each file of migrations/ once, in the order of their names. Two of these at once would both find the same files to
// apply, and the lease is all that keeps them apart.
import { readFile, readdir } from 'node:fs/promises'
import { client, fenced } from './database.js'

const folder = new URL('migrations/', import.meta.url)
let count = 0
await client.connect()
try {
  await fenced(() => client.query('create table if not exists applied_migrations (name text primary key)'))
  const { rows } = await client.query('select name from applied_migrations')
  const applied = new Set(rows.map(({ name }) => name))
  for (const name of (await readdir(folder)).toSorted()) {
    if (applied.has(name)) continue
    const sql = await readFile(new URL(name, folder), 'utf8')
    await fenced(async () => {
      await client.query(sql)
      await client.query('insert into applied_migrations (name) values ($1)', [name])
    })
    console.log(`applied ${name}`)
    count += 1
  }
  if (count === 0) console.log('nothing to do')
} finally {
  await client.end()
}

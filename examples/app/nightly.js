import { client, fenced } from './database.js'

await client.connect()
try {
  const { rowCount } = await fenced(() =>
    client.query(`update accounts set status = 'settled' where status = 'due'`),
  )
  console.log(`settled ${rowCount}`)
} finally {
  await client.end()
}

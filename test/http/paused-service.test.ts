import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { expect, onTestFinished, test } from 'vitest'
import { HttpFence } from '../../src/http/http-fence.ts'
import { useDatabase } from '../support/database.ts'

const database = useDatabase()

test('a service that is stopped in a handler keeps newer tokens out for its timeout, and learns on waking that it is late', async () => {
  const resource = 'file/paused'
  const file = fileURLToPath(new URL('children/service.ts', import.meta.url))
  const service = fork(file, [database.url, resource], { execArgv: ['--unhandled-rejections=strict'] })
  onTestFinished(() => void service.kill('SIGKILL'))
  const [{ port }] = (await once(service, 'message')) as [{ port: number }]
  const answer = fetch(`http://127.0.0.1:${port}/`, { headers: { 'Fencing-Token': '33' } })
  await once(service, 'message')
  service.kill('SIGSTOP')

  // Another instance of the service: it gets in once the server has ended the session of the one that says nothing.
  const fence = new HttpFence(database.pool, { wait: '20s' })
  const passage = await fence.enter({ 'fencing-token': '34' }, resource)
  await passage.leave()

  service.kill('SIGCONT')
  service.send('go on')
  // What no database can keep it from: it writes late. It could have known, and it does know in the end.
  const [late] = (await once(service, 'message')) as [{ wrote: string }]
  expect(late.wrote).toBe('33')
  expect(await (await answer).text()).toBe('false')
  const next = await fetch(`http://127.0.0.1:${port}/`, { headers: { 'Fencing-Token': '33' } })
  expect(next.status).toBe(412)
})

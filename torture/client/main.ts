// A client process of the torture suite: `node torture/client/main.ts SETTINGS`, started by torture/run/client-process.ts.
import { setClock } from './clock.ts'
// The clock comes first, before anything has looked at another one.
import { setTimeout as sleep } from 'node:timers/promises'
import { Fencepost } from '../../src/index.ts'
import { outcomeOf } from './outcome.ts'
import { Recorder } from './recorder.ts'
import type { ClientSettings, Message, Word } from './settings.ts'
import { arm, stand } from './steps.ts'
import { type Surroundings, work, workers } from './worker.ts'
import { Writer } from './writer.ts'

const sampleEveryMs = 15

const settings = JSON.parse(process.argv[2]!) as ClientSettings
const { name, url } = settings
const recorder = new Recorder(settings.history, name)
const writer = new Writer(url, name, recorder)
const stop = new AbortController()
let current: Promise<Fencepost | undefined> | undefined

async function open(): Promise<Fencepost | undefined> {
  while (!stop.signal.aborted) {
    try {
      const options = { label: name, minTtl: '100ms', ttl: '1s', requestTimeout: '2s' } as const
      // oxlint-disable-next-line no-await-in-loop -- Until the server is there.
      return await Fencepost.open({ connectionString: url, ...options })
    } catch {
      // oxlint-disable-next-line no-await-in-loop
      await sleep(100)
    }
  }
}

const here: Surroundings = {
  settings,
  recorder,
  writer,
  stopping: stop.signal,
  fencepost: () => (current ??= open()),
  close: async () => {
    const closing = await current
    current = undefined
    if (closing === undefined) return
    const op = recorder.asked('close', '')
    try {
      await closing.close()
      recorder.answered(op, 'won')
    } catch (error) {
      recorder.answered(op, outcomeOf(error).outcome, { code: outcomeOf(error).code })
    }
    recorder.sample()
  },
}

process.on('message', (message: Message) => {
  switch (message.order) {
    case 'arm':
      return arm(message.step)
    case 'block':
      return stand(message.forMs)
    case 'clock':
      return setClock(message.offsetMs, message.rate)
    case 'dawdle':
      return writer.dawdle(message.forMs)
    case 'stop':
      return stop.abort()
  }
})
// Without a parent there is nobody to work for.
const orphaned = (): void => process.exit(1)
process.on('disconnect', orphaned)

const sampling = setInterval(() => recorder.sample(), sampleEveryMs)
process.send!({ say: 'ready' } satisfies Word)
await Promise.all(Array.from({ length: workers }, (_, number) => work(here, number)))
await here.close()
await writer.end()
clearInterval(sampling)
recorder.close()
process.off('disconnect', orphaned)
process.disconnect()

import { describe, expect, test } from 'vitest'
import type { Connection, Ear, TextRow } from '../../src/database/connection.ts'
import { RequestFailure } from '../../src/database/failure.ts'
import { Listener } from '../../src/database/listener.ts'
import { Log } from '../support/line.ts'
import { ManualClock, settled } from '../support/manual-clock.ts'

const channel = 'fencepost_of_its_own'

/** A server as the listener sees it. */
class FakeServer {
  readonly clock = new ManualClock()
  readonly log = new Log()
  readonly sessions: FakeSession[] = []
  readonly heard: string[] = []
  changes = 0
  /** Connections are refused. */
  isDown = false
  /** LISTEN is accepted, and nothing ever comes. */
  isDeaf = false
  /** What stands between lends one session to whoever is first, and gives it back after each transaction. */
  isPooled = false

  readonly listener = new Listener({
    channel,
    connect: (ear) => {
      const session = new FakeSession(this, ear)
      this.sessions.push(session)
      return session as unknown as Connection
    },
    notify: async (payloads) => this.notify(...payloads),
    heard: (payload) => void this.heard.push(payload),
    changed: () => (this.changes += 1),
    clock: this.clock,
    logger: this.log,
    timeoutMs: 10_000,
  })

  get open(): FakeSession[] {
    return this.sessions.filter((session) => session.isOpen)
  }

  notify(...payloads: string[]): void {
    if (this.isDown) throw new RequestFailure('unsent', new Error('connection refused'))
    for (const session of this.open) {
      if (session.listensTo.has('fencepost') && !this.isDeaf && !session.isCut) {
        for (const payload of payloads) session.ear.notified('fencepost', payload)
      }
    }
  }

  /** Moves the clock until nothing is left to happen at once. */
  async settle(): Promise<void> {
    await settled()
    await settled()
  }
}

class FakeSession {
  readonly statements: string[] = []
  readonly ear: Ear
  readonly #server: FakeServer
  isOpen = false
  isClosed = false
  /** Half-open: nothing arrives, and nobody is told. */
  isCut = false
  /** Answers come a second later. */
  isSlow = false
  readonly listensTo = new Set<string>()

  constructor(server: FakeServer, ear: Ear) {
    this.#server = server
    this.ear = ear
  }

  get isPooled(): boolean {
    return this.isOpen && this.#server.isPooled
  }

  async query({ text, timeoutMs }: { text: string; timeoutMs: number }): Promise<TextRow[]> {
    if (this.isClosed) throw new RequestFailure('unsent', new Error('the connection is closed'))
    if (this.#server.isDown) throw new RequestFailure('unsent', new Error('connection refused'))
    this.isOpen = true
    this.statements.push(text)
    if (this.isCut) {
      const { promise, reject } = Promise.withResolvers<never>()
      this.#server.clock.after(timeoutMs, () => reject(new RequestFailure('unknown', new Error('no answer'))))
      return promise
    }
    if (this.isSlow) await new Promise<void>((resolve) => this.#server.clock.after(1000, resolve))
    if (text.startsWith('listen ')) this.listensTo.add(text.slice('listen '.length))
    if (text.startsWith('unlisten ')) this.listensTo.delete(text.slice('unlisten '.length))
    if (!text.includes('pg_backend_pid')) return []
    return [{ pid: this.#server.isPooled ? '1' : String(this.#server.sessions.indexOf(this)) }]
  }

  async close(): Promise<void> {
    this.isClosed = true
    this.end()
  }

  /** The server, or what lies between, ends it. */
  end(): void {
    if (!this.isOpen) return
    this.isOpen = false
    this.ear.ended()
  }
}

async function listening(): Promise<{ server: FakeServer; leave: () => void }> {
  const server = new FakeServer()
  const leave = server.listener.listen()
  await server.settle()
  expect(server.listener.isListening).toBe(true)
  return { server, leave }
}

describe('a listener', () => {
  test('has no connection before anybody waits, and one however many do', async () => {
    const server = new FakeServer()
    await server.clock.advance(100_000)
    expect(server.sessions).toHaveLength(0)
    for (let turn = 0; turn < 10; turn += 1) server.listener.listen()
    await server.settle()
    expect(server.sessions).toHaveLength(1)
    expect(server.listener.isListening).toBe(true)
  })

  test('counts as listening only when it has heard itself, and says that something may have been missed', async () => {
    const server = new FakeServer()
    server.isDeaf = true
    server.listener.listen()
    await server.settle()
    expect([...server.sessions[0]!.listensTo]).toEqual(['fencepost', channel])
    expect(server.listener.isListening).toBe(false)
    expect(server.changes).toBe(0)
    server.isDeaf = false
    await server.clock.advance(10_000)
    expect(server.listener.isListening).toBe(true)
    expect(server.changes).toBe(1)
  })

  test('passes on what it hears on its own channel and on that of all, and nothing else', async () => {
    const { server } = await listening()
    server.sessions[0]!.ear.notified('another channel', 'not for us')
    server.notify('7:8:proof', '9')
    server.sessions[0]!.ear.notified(channel, '10')
    expect(server.heard).toEqual(['7:8:proof', '9', '10'])
  })

  test('is gone 30 seconds after the last one has stopped to wait, and not before', async () => {
    const { server, leave } = await listening()
    const second = server.listener.listen()
    leave()
    await server.clock.advance(60_000)
    expect(server.open).toHaveLength(1)
    second()
    second()
    leave()
    await server.clock.advance(29_000)
    expect(server.open).toHaveLength(1)
    expect(server.listener.isListening).toBe(true)
    await server.clock.advance(1000)
    expect(server.open).toHaveLength(0)
    expect(server.listener.isListening).toBe(false)
    expect(server.clock.timers).toBe(0)
    expect(server.log.deafness).toEqual([])
    server.listener.listen()
    await server.settle()
    expect(server.listener.isListening).toBe(true)
    expect(server.sessions).toHaveLength(2)
  })

  test('stays when somebody waits again in that time', async () => {
    const { server, leave } = await listening()
    leave()
    await server.clock.advance(29_000)
    server.listener.listen()
    await server.clock.advance(120_000)
    expect(server.sessions).toHaveLength(1)
    expect(server.open).toHaveLength(1)
  })

  test('is gone in that time also when the last one left in the middle of a probe', async () => {
    const { server, leave } = await listening()
    const [session] = server.sessions
    session!.isSlow = true
    await server.clock.advance(10_500)
    leave()
    await server.clock.advance(31_000)
    expect(server.open).toHaveLength(0)
    expect(server.clock.timers).toBe(0)
  })

  test('is asked every ten seconds whether it is there', async () => {
    const { server } = await listening()
    const before = server.sessions[0]!.statements.length
    await server.clock.advance(100_000)
    const probes = server.sessions[0]!.statements.slice(before)
    expect(probes).toEqual(Array.from({ length: 10 }, () => 'select 1'))
  })

  test('notices within 13 seconds that its packets vanish, tells of it once, and listens again', async () => {
    const { server } = await listening()
    const { changes } = server
    server.sessions[0]!.isCut = true
    server.notify('missed')
    await server.clock.advance(12_900)
    expect(server.listener.isListening).toBe(true)
    await server.clock.advance(100)
    expect(server.log.deafness).toHaveLength(1)
    expect(server.changes).toBe(changes + 1)
    await server.clock.advance(200)
    expect(server.listener.isListening).toBe(true)
    expect(server.changes).toBe(changes + 2)
    expect(server.open).toHaveLength(1)
    server.notify('heard again')
    expect(server.heard).toEqual(['heard again'])
    expect(server.log.deafness).toHaveLength(1)
  })

  test('replaces a session that comes and goes ever more rarely, and says so once', async () => {
    const { server } = await listening()
    const opened = server.sessions.length
    for (let second = 0; second < 120; second += 1) {
      server.open[0]?.end()
      // oxlint-disable-next-line no-await-in-loop
      await server.clock.advance(1000)
    }
    expect(server.sessions.length - opened).toBeLessThan(15)
    expect(server.log.deafness).toHaveLength(1)
  })

  test('notices at once that its session was ended, and says so again when the next one had lasted', async () => {
    const { server } = await listening()
    for (let turn = 1; turn <= 3; turn += 1) {
      server.open[0]!.end()
      expect(server.listener.isListening).toBe(false)
      expect(server.log.deafness).toHaveLength(turn)
      // oxlint-disable-next-line no-await-in-loop
      await server.clock.advance(200)
      expect(server.listener.isListening).toBe(true)
      // oxlint-disable-next-line no-await-in-loop
      await server.clock.advance(11_000)
    }
    // What an old session says changes nothing.
    server.sessions[0]!.ear.ended()
    expect(server.listener.isListening).toBe(true)
  })

  test('tries ever less often where it cannot connect, and warns once for the whole time', async () => {
    const { server } = await listening()
    server.isDown = true
    server.open[0]!.end()
    await server.clock.advance(10_000)
    expect(server.sessions.length).toBeLessThan(15)
    const early = server.sessions.length
    await server.clock.advance(600_000)
    // Every 15 to 30 s.
    expect(server.sessions.length - early).toBeGreaterThanOrEqual(20)
    expect(server.sessions.length - early).toBeLessThanOrEqual(42)
    expect(server.log.deafness).toHaveLength(1)
    server.isDown = false
    // Up to 30 s until the next try, and 10 s until a probe shows that the session lasts.
    await server.clock.advance(41_000)
    expect(server.listener.isListening).toBe(true)
    expect(server.open).toHaveLength(1)
    server.isDown = true
    server.open[0]!.end()
    await server.clock.advance(60_000)
    expect(server.log.deafness).toHaveLength(2)
  })

  test('does not connect again while nobody waits', async () => {
    const { server, leave } = await listening()
    leave()
    server.open[0]!.end()
    await server.clock.advance(600_000)
    expect(server.sessions).toHaveLength(1)
    server.listener.listen()
    await server.settle()
    expect(server.listener.isListening).toBe(true)
  })

  test('waits for its next try also when others begin to wait meanwhile', async () => {
    const server = new FakeServer()
    server.isDown = true
    for (let turn = 0; turn < 50; turn += 1) {
      server.listener.listen()()
      // oxlint-disable-next-line no-await-in-loop
      await server.clock.advance(1)
    }
    expect(server.sessions.length).toBeLessThan(3)
  })

  test('that is deaf takes its subscription back, and leaves no session open', async () => {
    const server = new FakeServer()
    server.isDeaf = true
    server.listener.listen()
    await server.clock.advance(600_000)
    expect(server.open.length).toBeLessThanOrEqual(1)
    expect(server.log.deafness).toHaveLength(1)
    expect(server.log.deafness[0]).toContain('deaf')
  })

  test('subscribes nothing behind a pooler that lends its session to others', async () => {
    const server = new FakeServer()
    server.isPooled = true
    server.listener.listen()
    await server.clock.advance(600_000)
    expect(server.sessions.flatMap(({ statements }) => statements)).not.toContain('listen fencepost')
    expect(server.listener.isListening).toBe(false)
    expect(server.log.deafness).toHaveLength(1)
    expect(server.open).toHaveLength(0)
  })

  test('can be closed at any time, and then nothing is left: no session, no timer, no further try', async () => {
    for (let moment = 0; moment < 12; moment += 1) {
      for (const trouble of ['none', 'deaf', 'down'] as const) {
        const server = new FakeServer()
        server.isDeaf = trouble === 'deaf'
        server.isDown = trouble === 'down'
        server.listener.listen()
        for (let step = 0; step < moment; step += 1) await Promise.resolve()
        if (moment === 11) await server.clock.advance(1000)
        // oxlint-disable-next-line no-await-in-loop
        await server.listener.close()
        const { length } = server.sessions
        expect(server.open).toEqual([])
        expect(server.clock.timers).toBe(0)
        server.listener.listen()
        // oxlint-disable-next-line no-await-in-loop
        await server.clock.advance(100_000)
        expect(server.sessions).toHaveLength(length)
        expect(server.open).toEqual([])
      }
    }
  })
})

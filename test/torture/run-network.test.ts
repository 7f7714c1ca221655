import { once } from 'node:events'
import { type AddressInfo, type Socket, connect, createServer } from 'node:net'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { TcpProxy } from '../support/tcp-proxy.ts'

/** A server that answers each line with itself, and what it has heard. */
const heard: string[] = []
const server = createServer((socket) => {
  socket.on('error', () => {})
  socket.on('data', (data) => {
    heard.push(data.toString())
    socket.write(`re: ${data.toString()}`)
  })
})
let proxy: TcpProxy
let client: Socket
let answers = ''
/** What has come as far as the proxy. */
const passing: string[] = []

beforeEach(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  proxy = await TcpProxy.start(`postgres://127.0.0.1:${(server.address() as AddressInfo).port}/`)
  heard.length = 0
  passing.length = 0
  proxy.onRequest((data) => passing.push(data.toString()))
  await dial()
})

afterEach(async () => {
  await proxy.stop()
  await new Promise((resolve) => server.close(resolve))
})

async function dial(): Promise<void> {
  const { port } = new URL(proxy.url)
  client = connect(Number(port), '127.0.0.1')
  client.on('error', () => {})
  answers = ''
  client.on('data', (data) => (answers += data.toString()))
  await once(client, 'connect')
}

const answered = (text: string): Promise<void> => expect.poll(() => answers).toBe(text)

test('what is held arrives when it is let go, all of it and in its order', async () => {
  client.write('a')
  await answered('re: a')
  proxy.hold()
  client.write('b')
  await expect.poll(() => passing.join('')).toBe('ab')
  expect(answers).toBe('re: a')
  proxy.letGo()
  client.write('c')
  await expect.poll(() => heard.join('')).toBe('abc')
  await expect.poll(() => answers.replaceAll('re: ', '')).toBe('abc')
})

test('what is delayed arrives late, and overtakes nothing', async () => {
  const delays = [60, 0, 0]
  proxy.delay(() => delays.shift() ?? 0)
  const sentMs = performance.now()
  client.write('a')
  await expect.poll(() => heard.join('')).toBe('a')
  expect(performance.now() - sentMs).toBeGreaterThanOrEqual(59)
  await answered('re: a')
})

test('one way is lost, the other is not, and nobody is told', async () => {
  proxy.loseOneWay('to client')
  client.write('a')
  await expect.poll(() => heard).toEqual(['a'])
  proxy.loseOneWay('to server')
  client.write('b')
  await expect.poll(() => passing.join('')).toBe('ab')
  proxy.loseOneWay(undefined)
  client.write('c')
  await answered('re: c')
  expect(client.destroyed).toBe(false)
})

test('one answer is lost, to what it was asked to be, and those after it on the same connection', async () => {
  const { isLost } = proxy.loseReplyTo('commit', 'swallow')
  client.write('begin')
  await answered('re: begin')
  client.write('commit')
  await expect.poll(() => heard).toEqual(['begin', 'commit'])
  await isLost
  client.write('more')
  await expect.poll(() => heard).toContain('more')
  expect(answers).toBe('re: begin')
  await dial()
  client.write('commit')
  await answered('re: commit')
})

test('or it is answered with a reset', async () => {
  proxy.loseReplyTo('commit', 'cut')
  client.write('commit')
  await new Promise((resolve) => client.once('close', resolve))
  expect(heard).toEqual(['commit'])
})

test('a loss that was called off does not happen', async () => {
  proxy.loseReplyTo('commit', 'swallow').callOff()
  client.write('commit')
  await expect.poll(() => answers).toBe('re: commit')
})

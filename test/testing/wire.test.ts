import { fc, test as property } from '@fast-check/vitest'
import { describe, expect, test } from 'vitest'
import { patternOf } from '../../src/testing/reply-drop.ts'
import { urlThrough } from '../../src/testing/server-address.ts'
import { Messages, fatal, firstValueOf } from '../../src/testing/wire.ts'

function message(type: string, body: Buffer): Buffer {
  const head = Buffer.from(`${type}\0\0\0\0`)
  head.writeInt32BE(4 + body.length, 1)
  return Buffer.concat([head, body])
}

const anyMessage = fc
  .tuple(fc.constantFrom('Q', 'Z', 'D', 'S'), fc.uint8Array({ maxLength: 40 }))
  .map(([type, body]) => message(type, Buffer.from(body)))

describe('a stream of messages', () => {
  property.prop([fc.array(anyMessage), fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1 })])(
    'is cut into them, however it comes',
    (sent, sizes) => {
      const stream = Buffer.concat(sent)
      const messages = new Messages()
      const got: Buffer[] = []
      for (let at = 0, turn = 0; at < stream.length; turn += 1) {
        const size = sizes[turn % sizes.length]!
        got.push(...messages.push(stream.subarray(at, at + size)).map(({ bytes }) => bytes))
        at += size
      }
      expect(got).toEqual(sent)
    },
  )

  test('a message is known by its first byte', () => {
    expect(new Messages().push(message('Q', Buffer.from('select 1\0')))).toMatchObject([{ type: 'Q' }])
  })

  test('the first value of a Bind is found behind its names and formats', () => {
    const of = (...rest: number[]): Buffer =>
      message('B', Buffer.from([...Buffer.from('portal\0name\0'), ...rest]))
    expect(firstValueOf(of(0, 0, 0, 1, 0, 0, 0, 2, 65, 66, 0, 0))).toEqual(Buffer.from('AB'))
    expect(firstValueOf(of(0, 2, 0, 1, 0, 1, 0, 2, 0, 0, 0, 1, 67, 0, 0, 0, 0))).toEqual(Buffer.from('C'))
    expect(firstValueOf(of(0, 0, 0, 1, 255, 255, 255, 255, 0, 0))).toBeUndefined()
    expect(firstValueOf(of(0, 0, 0, 0, 0, 0))).toBeUndefined()
  })

  test('what is said to a client that is not let in has the form of an error', () => {
    const [{ type, bytes } = { type: '', bytes: Buffer.alloc(0) }] = new Messages().push(fatal('08001', 'no'))
    expect(type).toBe('E')
    expect(bytes.subarray(5).toString()).toBe('SFATAL\0VFATAL\0C08001\0Mno\0\0')
  })
})

describe('the text of a request', () => {
  test.each([
    ['acquire', `select name from fencepost.acquire_batch($1::text[])`, true],
    ['acquire', `select name from fencepost.acquire_all($1)`, true],
    ['acquire', `select name from fencepost.acquire($1)`, true],
    ['acquire', `select name from fencepost.release_batch($1)`, false],
    ['release', `call fencepost.hand_over($1)`, true],
    ['release', `select fencepost.release_batch($1)`, true],
    ['release', `select fencepost.force_release($1)`, false],
    ['beat', `select fencepost.beat($1::uuid) as alive`, true],
    ['beat', `select fencepost.fence($1)`, false],
    ['commit', 'COMMIT', true],
    ['commit', 'insert into t values (1); commit', true],
    ['commit', 'end', true],
    ['commit', 'select endpoint, committed from t', false],
    ['commit', 'begin', false],
  ] as const)('%s: %s', (to, text, isFound) => {
    expect(patternOf(to).test(text)).toBe(isFound)
  })
})

describe('the URL through the proxy', () => {
  const credentials = { user: 'a b@c', password: 'p:/?#%@ü+', database: 'my db/1' }

  test('has the credentials, and leads to this machine', () => {
    const url = urlThrough(4711, credentials, undefined)
    expect(url).not.toContain('+')
    const parsed = new URL(url)
    expect(parsed.host).toBe('127.0.0.1:4711')
    expect(decodeURIComponent(parsed.username)).toBe(credentials.user)
    expect(decodeURIComponent(parsed.password)).toBe(credentials.password)
    expect(decodeURIComponent(parsed.pathname)).toBe('/my db/1')
  })

  test('keeps what is said of the session, and nothing of the way there', () => {
    const original =
      'postgres://u:p@db.example:1/x?sslmode=verify-full&sslrootcert=/ca&sslnegotiation=direct&channel_binding=require' +
      '&application_name=my%20app&options=-c%20search_path%3Da&host=/tmp&port=9'
    const { searchParams } = new URL(urlThrough(1, credentials, original))
    expect([...searchParams]).toEqual([
      ['application_name', 'my app'],
      ['options', '-c search_path=a'],
      ['sslmode', 'disable'],
    ])
  })

  test('of a Unix socket is one', () => {
    const { searchParams } = new URL(urlThrough(1, credentials, 'postgres://%2Ftmp/db?application_name=x'))
    expect(searchParams.get('application_name')).toBe('x')
  })
})

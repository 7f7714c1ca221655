import { createHash } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import type { Token } from '../../src/lease/term.ts'
import { Wakes } from '../../src/lease/wakes.ts'

const holderId = '6a1f9a4e-5f63-4f53-9d0b-2f8f0b7f3c11'

/** As `fencepost.wake_up` makes it. */
function wakeUp(ticket: string, token: string, by = holderId, lease = 'lease'): string {
  const proof = createHash('sha256').update(`${by}:${ticket}:${token}:${lease}`).digest('hex').slice(0, 24)
  return `${ticket}:${token}:${proof}`
}

function sleeper(
  wakes: Wakes,
  ticket: string,
  lease = 'lease',
): { woken: (Token | undefined)[]; end: () => void } {
  const woken: (Token | undefined)[] = []
  return { woken, end: wakes.add(lease, ticket, holderId, (token) => woken.push(token)) }
}

describe('a wake-up', () => {
  test('with a proof brings the token, to the one whose ticket it names', () => {
    const wakes = new Wakes()
    const [seven, eight] = [sleeper(wakes, '7'), sleeper(wakes, '8')]
    expect(wakes.deliver(wakeUp('7', '34'))).toBe(true)
    expect(seven.woken).toEqual([34n])
    expect(eight.woken).toEqual([])
    // To 2^63 − 1, exactly.
    wakes.deliver(wakeUp('8', '9223372036854775807'))
    expect(eight.woken).toEqual([9223372036854775807n])
  })

  test('without one only leads to a question', () => {
    const wakes = new Wakes()
    const { woken } = sleeper(wakes, '7')
    const right = wakeUp('7', '34')
    const forged = [
      '7',
      '7:35',
      '7:35:',
      '7:35:000000000000000000000000',
      right.replace('34', '35'),
      `${right}0`,
      right.slice(0, -1),
      right.toUpperCase().replace(/[0-9]+$/, ''),
      wakeUp('7', '34', 'another holder'),
      wakeUp('7', '-1'),
      wakeUp('7', '1e3'),
      wakeUp('7', ''),
      wakeUp('7', '99999999999999999999'),
    ]
    for (const wake of forged) expect(wakes.deliver(wake)).toBe(true)
    expect(woken).toEqual(forged.map(() => undefined))
  })

  test('for nobody here says so, and harms nobody', () => {
    const wakes = new Wakes()
    const { woken, end } = sleeper(wakes, '7')
    for (const wake of ['', ':', '8', 'echo 123', '8:34:proof', '__proto__', '07', ' 7', '7 ', '\u0000']) {
      expect(wakes.deliver(wake)).toBe(false)
    }
    end()
    expect(wakes.deliver(wakeUp('7', '34'))).toBe(false)
    expect(woken).toEqual([])
  })

  test('that overtakes the answer with its ticket is kept while such an answer is expected', () => {
    const wakes = new Wakes()
    const expected = wakes.expect()
    const second = wakes.expect()
    expect(wakes.deliver(wakeUp('7', '34'))).toBe(false)
    expect(wakes.deliver(wakeUp('8', '35'))).toBe(false)
    expected()
    const seven = sleeper(wakes, '7')
    expect(seven.woken).toEqual([34n])
    second()
    // Nobody has asked for it, so it was somebody else's.
    expect(sleeper(wakes, '8').woken).toEqual([])
    wakes.deliver(wakeUp('9', '36'))
    expect(sleeper(wakes, '9').woken).toEqual([])
  })

  test('is not kept without end, however many are heard', () => {
    const wakes = new Wakes()
    wakes.expect()
    for (let ticket = 0; ticket < 10_001; ticket += 1) wakes.deliver(wakeUp(String(ticket), '1'))
    expect(sleeper(wakes, '0').woken).toEqual([])
    expect(sleeper(wakes, '1').woken).toEqual([1n])
    expect(sleeper(wakes, '10000').woken).toEqual([1n])
  })

  test('that ends a sleep while all are woken wakes the others', () => {
    const wakes = new Wakes()
    const woken: string[] = []
    const ends = ['1', '2', '3'].map((ticket) =>
      wakes.add('lease', ticket, ticket === '3' ? 'another' : holderId, () => {
        woken.push(ticket)
        ends[0]!()
      }),
    )
    wakes.askAll(holderId)
    expect(woken).toEqual(['1', '2'])
    wakes.askAll()
    expect(woken).toEqual(['1', '2', '2', '3'])
  })

  test('is a grant for the lease it was made for only, when a number has been given out twice', () => {
    const wakes = new Wakes()
    const [earlier, later] = [sleeper(wakes, '7', 'a'), sleeper(wakes, '7', 'b')]
    wakes.deliver(wakeUp('7', '34', holderId, 'b'))
    expect(earlier.woken).toEqual([undefined])
    expect(later.woken).toEqual([34n])
    earlier.end()
    wakes.deliver(wakeUp('7', '35', holderId, 'b'))
    expect(later.woken).toEqual([34n, 35n])
    later.end()
    expect(wakes.deliver(wakeUp('7', '36', holderId, 'b'))).toBe(false)
  })

  test('may be left to this process for the places of a lease that somebody waits at here', () => {
    const wakes = new Wakes()
    expect(wakes.ticketsOf('lease')).toEqual([])
    const [seven, eight, other] = [sleeper(wakes, '7'), sleeper(wakes, '8'), sleeper(wakes, '9', 'other')]
    expect(wakes.ticketsOf('lease')).toEqual(['7', '8'])
    expect(wakes.ticketsOf('other')).toEqual(['9'])
    seven.end()
    seven.end()
    expect(wakes.ticketsOf('lease')).toEqual(['8'])
    eight.end()
    other.end()
    expect([...wakes.ticketsOf('lease'), ...wakes.ticketsOf('other')]).toEqual([])
  })
})

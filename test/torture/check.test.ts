import { describe, expect, test } from 'vitest'
import type { ViolationKind } from '../../torture/check/check.ts'
import { Story, kindsOf } from './check-story.ts'

/** One history told in two ways that differ in one fact. */
interface Case {
  readonly kind: ViolationKind
  readonly fact: string
  readonly tell: (story: Story, isBad: boolean) => void
}

const cases: readonly Case[] = [
  {
    kind: 'stale-write',
    fact: 'a write is committed after the next term has been granted',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.at(100).ask('c1', 'write', 'L', { token: 1, row: 'r' })
      const write = (): void => story.at(1400).commit(story.write('c1', op, 'L', 1))
      story.at(1300).join('c2')
      if (!isBad) write()
      story.at(1400).acquire('c2', 'L', 2, 'c1')
      if (isBad) write()
      story.at(1500).tell('c1', op, 'unknown')
    },
  },
  {
    kind: 'stale-write',
    fact: 'a row is stamped after the next term has been granted',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(1300).join('c2')
      if (!isBad) story.commit(story.row('r', 'L', 1))
      story.acquire('c2', 'L', 2, 'c1')
      if (isBad) story.commit(story.row('r', 'L', 1))
    },
  },
  {
    kind: 'stamp-went-back',
    fact: 'a row that two leases write to gets the lower stamp last',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.acquire('c2', 'M', 2)
      story.commit(story.row('r', isBad ? 'M' : 'L', isBad ? 2 : 1))
      story.commit(story.row('r', isBad ? 'L' : 'M', isBad ? 1 : 2))
    },
  },
  {
    kind: 'stamp-went-back',
    fact: 'a row loses its stamp',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.commit(story.row('r', 'L', isBad ? 1 : null))
      story.commit(story.row('r', 'L', isBad ? null : 1))
    },
  },
  {
    kind: 'write-without-term',
    fact: 'a write has a token that was not given out yet',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const token = isBad ? 2 : 1
      const op = story.ask('c1', 'write', 'L', { token, row: 'r' })
      story.commit(story.write('c1', op, 'L', token))
    },
  },
  {
    kind: 'write-without-term',
    fact: 'a write is committed under a lease that was never granted',
    tell(story, isBad) {
      story.join('c1')
      if (!isBad) story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write('c1', op, 'L', 1))
    },
  },
  {
    kind: 'write-without-term',
    fact: "a client writes under another client's term",
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const client = isBad ? 'c2' : 'c1'
      const op = story.ask(client, 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write(client, op, 'L', 1))
    },
  },
  {
    kind: 'write-without-term',
    fact: 'a write is committed after the term was given back',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      if (!isBad) story.commit(story.write('c1', op, 'L', 1))
      story.release('c1', 'L', 1)
      if (isBad) story.commit(story.write('c1', op, 'L', 1))
    },
  },
  {
    kind: 'terms-overlap',
    fact: 'the former holder, which had time left, has not ended',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.at(500)
      if (!isBad) story.commit(story.holder('c1', { endedMs: 500 }))
      story.acquire('c2', 'L', 2)
    },
  },
  {
    kind: 'terms-overlap',
    fact: 'the former holder has run out of time, and the taker did not end it',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(1200).join('c2')
      story.acquire('c2', 'L', 2, ...(isBad ? [] : ['c1']))
    },
  },
  {
    kind: 'terms-overlap',
    fact: 'the former holder ended after the grant',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.at(500)
      story.commit(story.holder('c1', { endedMs: isBad ? 501 : 499 }))
      story.acquire('c2', 'L', 2)
    },
  },
  {
    kind: 'terms-overlap',
    fact: 'the end of the term lies after the next grant',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.commit(story.lease('L', { deadlineMs: isBad ? 501 : 500 }))
      story.at(500).acquire('c2', 'L', 2)
    },
  },
  {
    kind: 'terms-overlap',
    fact: 'the lease goes from hand to hand, and its holder was told that it had let nothing go',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const waiting = story.at(100).ask('c2', 'acquire', 'L')
      const op = story.at(200).ask('c1', 'release', 'L', { token: 1 })
      story.grant('L', 2, 'c2')
      story.tell('c1', op, isBad ? 'lost' : 'won')
      story.tell('c2', waiting, 'won', 2)
    },
  },
  {
    kind: 'granted-too-early',
    fact: 'the lease was to be available only later',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.commit(story.lease('L', { availableMs: isBad ? 301 : 300 }))
      story.at(200).release('c1', 'L', 1)
      story.at(300).acquire('c2', 'L', 2)
    },
  },
  {
    kind: 'ended-alive',
    fact: 'the holder that the taker has ended had time left',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(isBad ? 999 : 1000).join('c2')
      story.acquire('c2', 'L', 2, 'c1')
    },
  },
  {
    kind: 'granted-to-ended',
    fact: 'the holder ended before the grant',
    tell(story, isBad) {
      story.join('c1')
      const op = story.ask('c1', 'acquire', 'L')
      const end = (): void => story.commit(story.holder('c1', { endedMs: 0 }))
      if (isBad) end()
      story.grant('L', 1, 'c1')
      if (!isBad) end()
      story.tell('c1', op, 'lost')
    },
  },
  {
    kind: 'term-changed-hands',
    fact: 'the row names another holder under the same token',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.commit(story.lease('L', { holder: isBad ? 'c2' : 'c1', deadlineMs: 5000 }))
    },
  },
  {
    kind: 'term-changed-hands',
    fact: 'a free lease gets a holder under the token of the last term',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.release('c1', 'L', 1)
      story.commit(story.lease('L', { holder: isBad ? 'c1' : null }))
    },
  },
  {
    kind: 'token-given-twice',
    fact: 'two leases of one sequence get the same token',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 7)
      story.ask('c2', 'acquire', 'M')
      story.grant('M', isBad ? 7 : 8, 'c2')
    },
  },
  {
    kind: 'token-given-twice',
    fact: 'a lease that was purged begins anew',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.release('c1', 'L', 1)
      story.commit({ ...story.lease('L', {}), how: 'delete' })
      story.ask('c1', 'acquire', 'L')
      story.grant('L', isBad ? 1 : 2, 'c1')
    },
  },
  {
    kind: 'token-fell',
    fact: 'a lease gets a lower token than another before',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 7)
      story.acquire('c2', 'M', isBad ? 6 : 8)
    },
  },
  {
    kind: 'token-told-twice',
    fact: 'two requests were told of one token',
    tell(story, isBad) {
      story.join('c1')
      const first = story.ask('c1', 'acquire', 'L')
      const second = story.ask('c1', 'acquire', 'L')
      story.grant('L', 1, 'c1')
      story.tell('c1', first, 'won', 1)
      if (isBad) story.tell('c1', second, 'won', 1)
      else story.tell('c1', second, 'busy')
    },
  },
  {
    kind: 'told-token-fell',
    fact: 'it was asked after a greater token had been told',
    tell(story, isBad) {
      story.join('c1')
      if (!isBad) story.ask('c1', 'acquire', 'L')
      story.ask('c1', 'acquire', 'L')
      story.at(1).grant('L', 1, 'c1')
      story.at(100).ask('c1', 'release', 'L', { token: 1 })
      story.grant('L', 2, 'c1')
      story.at(101).tell('c1', isBad ? 1 : 2, 'won', 2)
      if (isBad) story.at(200).ask('c1', 'acquire', 'L')
      story.at(201).tell('c1', isBad ? 3 : 1, 'won', 1)
    },
  },
  {
    kind: 'holder-revived',
    fact: 'a heartbeat gives time to a holder that has ended',
    tell(story, isBad) {
      story.join('c1')
      const end = (): void => story.commit(story.holder('c1', { endedMs: 100 }))
      if (isBad) end()
      story.commit(story.holder('c1', { expiresMs: 1100 }))
      if (!isBad) end()
    },
  },
  {
    kind: 'holder-revived',
    fact: 'an end is taken back',
    tell(story, isBad) {
      story.join('c1')
      story.commit(story.holder('c1', { endedMs: 100 }))
      story.commit(story.holder('c1', { endedMs: isBad ? null : 100 }))
    },
  },
  {
    kind: 'holder-revived',
    fact: 'a holder that was forgotten joins once more',
    tell(story, isBad) {
      story.join('c1')
      story.commit(story.holder('c1', { endedMs: 100 }))
      story.commit(story.holder('c1', { how: 'delete' }))
      story.commit(story.holder(isBad ? 'c1' : 'c1/again', { how: 'insert', endedMs: null }))
    },
  },
  {
    kind: 'holder-revived',
    fact: 'a holder that was deleted before its end joins once more',
    tell(story, isBad) {
      story.join('c1')
      story.commit(story.holder('c1', { how: 'delete' }))
      story.commit(story.holder(isBad ? 'c1' : 'c1/again', { how: 'insert' }))
    },
  },
  {
    kind: 'expiry-fell',
    fact: 'a heartbeat takes time away',
    tell(story, isBad) {
      story.join('c1')
      story.commit(story.holder('c1', { expiresMs: 1200 }))
      story.commit(story.holder('c1', { expiresMs: isBad ? 1199 : 1200 }))
    },
  },
  {
    kind: 'freed-by-another',
    fact: 'only another client had asked to release',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      const client = isBad ? 'c2' : 'c1'
      const op = story.at(100).ask(client, 'release', 'L', { token: 1 })
      story.free('L')
      story.tell(client, op, 'won', 1)
    },
  },
  {
    kind: 'freed-by-another',
    fact: 'the client had asked to release an earlier term',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.release('c1', 'L', 1)
      story.acquire('c1', 'L', 2)
      const op = story.at(100).ask('c1', 'release', 'L', { token: isBad ? 1 : 2 })
      story.free('L')
      story.tell('c1', op, 'won')
    },
  },
  {
    kind: 'freed-by-another',
    fact: 'the client asked only later',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      if (isBad) story.at(100).free('L')
      const op = story.at(200).ask('c1', 'release', 'L', { token: 1 })
      if (!isBad) story.free('L')
      story.tell('c1', op, 'won', 1)
    },
  },
  {
    kind: 'freed-by-another',
    fact: 'the lease is deleted while its holder lives',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      if (!isBad) story.commit(story.holder('c1', { endedMs: 100 }))
      story.at(100).commit({ ...story.lease('L', {}), how: 'delete' })
    },
  },
  {
    kind: 'freed-by-another',
    fact: 'the lease is deleted instead of freed',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.ask('c1', 'release', 'L', { token: 1 })
      if (!isBad) story.free('L')
      story.commit({ ...story.lease('L', {}), how: 'delete' })
    },
  },
  {
    kind: 'won-release-missing',
    fact: 'the client was told that its term was released, and it was not',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.at(100).ask('c1', 'release', 'L', { token: 1 })
      story.at(110).tell('c1', op, 'won', 1)
      // A crash has undone it, and it is done once more.
      if (!isBad) story.at(5000).free('L')
      for (let ms = 500; ms < 60_000; ms += 500) story.at(ms).beat('c1')
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'the time of the holder was up',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(500).beat('c1')
      story.at(isBad ? 1510 : 1500).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'the heartbeat that gave it more time came only later',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(isBad ? 1300 : 1100).beat('c1')
      story.at(1200).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'a newer term had been granted',
    tell(story, isBad) {
      story.join('c1', 'c2')
      story.acquire('c1', 'L', 1)
      story.ask('c2', 'acquire', 'L')
      story.at(80).ask('c1', 'release', 'L', { token: 1 })
      // From hand to hand.
      story.at(100).grant('L', 2, 'c2')
      story.at(isBad ? 110 : 90).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'its holder had ended',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(100).commit(story.holder('c1', { endedMs: 100 }))
      story.at(isBad ? 110 : 90).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'it had been given back',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(100).release('c1', 'L', 1)
      story.at(isBad ? 110 : 90).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'its own end had come',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.commit(story.lease('L', { deadlineMs: 100 }))
      story.at(isBad ? 110 : 90).trust('c1', 'L', 1)
    },
  },
  {
    kind: 'trust-outlived-term',
    fact: 'it says yes',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      story.at(1200).trust('c1', 'L', 1, isBad)
    },
  },
  {
    kind: 'won-grant-missing',
    fact: 'the grant that was told is not in the log',
    tell(story, isBad) {
      story.join('c1')
      const op = story.ask('c1', 'acquire', 'L')
      if (!isBad) story.grant('L', 1, 'c1')
      story.tell('c1', op, 'won', 1)
    },
  },
  {
    kind: 'won-grant-missing',
    fact: 'the term that was told is of another client',
    tell(story, isBad) {
      story.join('c1', 'c2')
      const op = story.ask('c1', 'acquire', 'L')
      story.ask('c2', 'acquire', 'L')
      story.grant('L', 1, isBad ? 'c2' : 'c1')
      story.tell('c1', op, 'won', 1)
    },
  },
  {
    kind: 'won-write-missing',
    fact: 'a write was told to be committed',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.tell('c1', op, isBad ? 'won' : 'unknown')
    },
  },
  {
    kind: 'won-write-missing',
    fact: 'commits had to wait for the disk when it was told',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      const fault = isBad ? 'crash' : 'async-commit'
      story.fault(fault, 'begins', 'the server')
      story.at(100).tell('c1', op, 'won')
      story.at(200).fault(fault, 'ends', 'the server')
    },
  },
  {
    kind: 'lost-write-committed',
    fact: 'a committed write was told to be refused',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write('c1', op, 'L', 1))
      story.tell('c1', op, isBad ? 'lost' : 'won')
    },
  },
  {
    kind: 'lost-write-committed',
    fact: 'a committed write was told not to have been tried',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write('c1', op, 'L', 1))
      story.tell('c1', op, isBad ? 'busy' : 'unknown')
    },
  },
  {
    kind: 'write-committed-twice',
    fact: 'two transactions have the same write',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      const other = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write('c1', op, 'L', 1))
      story.commit(story.write('c1', isBad ? op : other, 'L', 1))
    },
  },
  {
    kind: 'write-not-asked-for',
    fact: 'no request has the number of the write',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: 'r' })
      story.commit(story.write('c1', isBad ? op + 1 : op, 'L', 1))
    },
  },
  {
    kind: 'write-not-asked-for',
    fact: 'the write is to another row than was asked for',
    tell(story, isBad) {
      story.join('c1')
      story.acquire('c1', 'L', 1)
      const op = story.ask('c1', 'write', 'L', { token: 1, row: isBad ? 'q' : 'r' })
      story.commit(story.write('c1', op, 'L', 1))
    },
  },
  {
    kind: 'grant-not-asked-for',
    fact: 'the client had asked for another lease',
    tell(story, isBad) {
      story.join('c1')
      story.ask('c1', 'acquire', isBad ? 'M' : 'L')
      story.at(100).grant('L', 1, 'c1')
    },
  },
  {
    kind: 'grant-not-asked-for',
    fact: 'the client asked only later',
    tell(story, isBad) {
      story.join('c1')
      story.at(isBad ? 110 : 100).ask('c1', 'acquire', 'L')
      story.at(100).grant('L', 1, 'c1')
    },
  },
  {
    kind: 'untold-term-lasts',
    fact: 'a client that was told "busy" keeps its term alive',
    tell(story, isBad) {
      story.join('c1')
      const op = story.ask('c1', 'acquire', 'L')
      story.grant('L', 1, 'c1')
      story.at(100).tell('c1', op, 'busy')
      if (!isBad) story.at(10_000).free('L')
      for (let ms = 500; ms < 60_000; ms += 500) story.at(ms).beat('c1')
    },
  },
  {
    kind: 'untold-term-lasts',
    fact: 'its request was answered long ago',
    tell(story, isBad) {
      story.join('c1')
      const op = story.ask('c1', 'acquire', 'L')
      story.grant('L', 1, 'c1')
      for (let ms = 500; ms < 60_000; ms += 500) story.at(ms).beat('c1')
      // Whoever waits may still be told.
      if (isBad) story.at(10_000).tell('c1', op, 'busy')
    },
  },
  {
    kind: 'odd-answer',
    fact: 'there is no such answer',
    tell(story, isBad) {
      const op = story.ask('c1', 'acquire', 'L')
      story.tell('c1', op, (isBad ? 'perhaps' : 'busy') as 'busy')
    },
  },
  {
    kind: 'odd-answer',
    fact: 'the answer has no question',
    tell(story, isBad) {
      const op = story.ask('c1', 'acquire', 'L')
      story.tell('c1', isBad ? op + 1 : op, 'busy')
    },
  },
  {
    kind: 'odd-answer',
    fact: 'the question is answered twice',
    tell(story, isBad) {
      const op = story.ask('c1', 'acquire', 'L')
      story.tell('c1', op, 'busy')
      if (isBad) story.tell('c1', op, 'lost')
    },
  },
  {
    kind: 'odd-answer',
    fact: 'a grant is told without its token',
    tell(story, isBad) {
      story.join('c1')
      const op = story.ask('c1', 'acquire', 'L')
      story.grant('L', 1, 'c1')
      story.tell('c1', op, 'won', isBad ? undefined : 1)
    },
  },
]

describe('a history is condemned for one fact:', () => {
  test.each(cases)('$kind: $fact', ({ kind, tell }) => {
    const [good, bad] = [new Story(), new Story()]
    tell(good, false)
    tell(bad, true)
    expect(kindsOf(good)).toEqual([])
    expect(kindsOf(bad)).toEqual([kind])
  })

  test('tokens of two sequences are not compared', () => {
    const story = new Story()
    story.join('c1')
    story.acquire('c1', 'L', 7)
    story.acquire('c1', 'M', 7)
    story.release('c1', 'M', 7)
    story.acquire('c1', 'M', 6)
    const sequenceOf = (lease: string): string => lease
    expect(kindsOf(story)).toEqual(['token-given-twice', 'token-fell', 'token-told-twice'])
    expect(kindsOf(story, { sequenceOf })).toEqual(['token-fell'])
  })

  test('a reading of the clock may be off by a moment, and no more', () => {
    const story = new Story()
    story.join('c1')
    story.acquire('c1', 'L', 1)
    story.at(1004).trust('c1', 'L', 1)
    expect(kindsOf(story)).toEqual([])
    expect(kindsOf(story, { slackUs: 3000 })).toEqual(['trust-outlived-term'])
  })

  test('how long a client may take to give back what it did not know of can be said', () => {
    const story = new Story()
    story.join('c1')
    const op = story.ask('c1', 'acquire', 'L')
    story.grant('L', 1, 'c1')
    story.tell('c1', op, 'unknown')
    for (let ms = 500; ms < 5000; ms += 500) story.at(ms).beat('c1')
    expect(kindsOf(story)).toEqual([])
    expect(kindsOf(story, { settleWithinUs: 1_000_000 })).toEqual(['untold-term-lasts'])
  })

  test('the tokens of one batch may be written in any order', () => {
    const story = new Story()
    story.join('c1')
    const ops = ['L', 'M', 'N'].map((lease) => story.ask('c1', 'acquire', lease))
    const batch = [3, 1, 2]
    story.commit(
      ...['L', 'M', 'N'].map((lease, place) =>
        story.lease(lease, { token: batch[place]!, holder: 'c1', grantedMs: 0 }),
      ),
    )
    for (const [place, op] of ops.entries()) story.tell('c1', op, 'won', batch[place])
    story.acquire('c1', 'O', 4)
    expect(kindsOf(story)).toEqual([])
  })

  test('a row may bear the stamp of another lease', () => {
    const story = new Story()
    story.join('c1')
    story.acquire('c1', 'L', 1)
    story.acquire('c1', 'M', 2)
    story.commit(story.row('r', 'M', 1))
    expect(kindsOf(story)).toEqual([])
  })

  test('what a former holder may still do is no violation', () => {
    const story = new Story()
    story.join('c1')
    story.acquire('c1', 'L', 1)
    // A transaction that began in time ends after its holder's time, and after its end.
    const op = story.at(900).ask('c1', 'write', 'L', { token: 1, row: 'r' })
    story.at(1100).commit(story.holder('c1', { endedMs: 1100 }))
    story.at(1200).commit(story.write('c1', op, 'L', 1), story.row('r', 'L', 1))
    story.tell('c1', op, 'won')
    // What it leaves behind goes on to the next in line, by a call of its own.
    story.join('c2')
    const waiting = story.ask('c2', 'acquire', 'L')
    story
      .at(1300)
      .commit(
        story.lease('L', { holder: null }),
        story.lease('L', { token: 2, holder: 'c2', grantedMs: 1300 }),
      )
    story.tell('c2', waiting, 'won', 2)
    // And its holder is forgotten.
    story.commit(story.holder('c1', { how: 'delete' }))
    expect(kindsOf(story)).toEqual([])
  })
})

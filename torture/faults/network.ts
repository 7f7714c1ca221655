import { anyClient, between, inTime } from './choose.ts'
import type { FaultKind, World } from './fault.ts'

/** How the connections of a client look after bytes were lost in them: a stream with a gap is of no use. */
type Proxy = World['clients'][number]['proxy']

function onOne(
  name: string,
  lastsMs: readonly [number, number],
  inflict: (proxy: Proxy, world: World) => () => void,
): FaultKind {
  return {
    name,
    lastsMs,
    async inflict(world) {
      const { proxy, name: client } = anyClient(world)
      const heal = inflict(proxy, world)
      return { target: `network of ${client}`, heal: async () => heal() }
    },
  }
}

/** Nothing gets through, and nothing is lost: TCP sends it again, and it arrives late, all of it at once. */
const drop = onOne('drop', [100, 3000], (proxy) => {
  proxy.hold()
  return () => proxy.letGo()
})

const delay = onOne('delay', [1000, 5000], (proxy, world) => {
  const upToMs = between(world, 10, 250)
  // What each packet takes is the network's affair, not the seed's.
  proxy.delay(() => Math.random() * upToMs)
  return () => proxy.delay(() => 0)
})

function oneWay(name: string, direction: 'to server' | 'to client'): FaultKind {
  return onOne(name, [300, 3000], (proxy) => {
    proxy.loseOneWay(direction)
    return () => {
      proxy.loseOneWay(undefined)
      proxy.cut()
    }
  })
}

const reset = onOne('reset', [0, 0], (proxy) => {
  proxy.cut()
  return () => {}
})

/** Silence, also on new connections, and nobody is told. */
const blackHole = onOne('black-hole', [300, 4000], (proxy) => {
  proxy.drop()
  return () => {
    proxy.restore()
    proxy.cut()
  }
})

/** Silently or with a reset. What is lost is lost for good: there is nothing to heal. */
function lostReply(name: string, to: string): FaultKind {
  return {
    name,
    lastsMs: [0, 0],
    async inflict(world) {
      const { proxy, name: client } = anyClient(world)
      const { isLost, callOff } = proxy.loseReplyTo(to, world.random() < 0.5 ? 'swallow' : 'cut')
      try {
        await inTime(isLost, `nothing was sent that has "${to}" in it`)
      } finally {
        callOff()
      }
      return { target: `network of ${client}`, heal: async () => {} }
    },
  }
}

export const networkFaults: readonly FaultKind[] = [
  drop,
  delay,
  oneWay('one-way-to-server', 'to server'),
  oneWay('one-way-to-client', 'to client'),
  reset,
  blackHole,
  // By the names under which the statements are prepared; what is acquired for several leases is prepared under a longer name.
  lostReply('lost-reply-acquire', 'fencepost_acquire'),
  lostReply('lost-reply-beat', 'fencepost_beat'),
  lostReply('lost-reply-release', 'fencepost_release'),
  lostReply('lost-reply-commit', 'commit'),
]

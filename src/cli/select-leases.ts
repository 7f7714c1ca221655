import { InvalidArgumentError } from '../errors.ts'
import { show } from '../duration.ts'
import type { LeaseInfo } from '../lease/lease-list.ts'

/** Which leases a command is about, and in which order, as its options say it. */
export interface SelectOptions {
  readonly state?: string
  readonly holder?: string
  readonly prefix?: string
  readonly sort?: string
}

const states = ['held', 'expired', 'draining', 'withheld', 'free'] as const

const orders: Readonly<Record<string, (a: LeaseInfo, b: LeaseInfo) => number>> = {
  // As the database sorts them: byte by byte.
  name: (a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)),
  // Those that nobody holds come last.
  since: (a, b) => (a.since?.getTime() ?? Infinity) - (b.since?.getTime() ?? Infinity) || 0,
  token: (a, b) => (a.token < b.token ? -1 : Number(a.token > b.token)),
}

/**
 * A function that picks and sorts. Checked before any database is asked.
 *
 * @throws InvalidArgumentError
 */
export function selection(
  pattern: string | undefined,
  { state, holder, prefix, sort = 'name' }: SelectOptions,
): (leases: readonly LeaseInfo[]) => LeaseInfo[] {
  const wanted = state?.split(',').map((one) => one.trim())
  for (const one of wanted ?? []) {
    if (!(states as readonly string[]).includes(one)) {
      throw new InvalidArgumentError(
        '--state',
        state,
        `--state must be a list of ${states.join(', ')}, separated by commas; got ${show(state)}`,
      )
    }
  }
  const order = Object.hasOwn(orders, sort) ? orders[sort] : undefined
  if (order === undefined) {
    throw new InvalidArgumentError('--sort', sort, `--sort must be name, since or token; got ${show(sort)}`)
  }
  const form = pattern === undefined ? undefined : asExpression(pattern)
  const isWanted = (lease: LeaseInfo): boolean =>
    (wanted === undefined || wanted.includes(lease.state)) &&
    (holder === undefined || isHeldBy(lease, holder)) &&
    (prefix === undefined || lease.name.startsWith(prefix)) &&
    (form === undefined || form.test(lease.name))
  // What is sorted alike keeps the order of its names.
  return (leases) => leases.filter(isWanted).toSorted((a, b) => order(a, b) || orders['name']!(a, b))
}

/** A part of the holder's label or host, or its process id. */
function isHeldBy({ holder, host, pid }: LeaseInfo, text: string): boolean {
  const isPart = (whole: string | undefined): boolean =>
    whole !== undefined && whole.toLowerCase().includes(text.toLowerCase())
  return isPart(holder) || isPart(host) || pid?.toString() === text
}

/** As in a shell: `*` is any text, `?` one character; everything else is itself. */
function asExpression(pattern: string): RegExp {
  const source = pattern
    .replaceAll(/[.+^${}()|[\]\\/]/g, String.raw`\$&`)
    .replaceAll('*', '[^]*')
    .replaceAll('?', '[^]')
  return new RegExp(`^${source}$`, 'u')
}

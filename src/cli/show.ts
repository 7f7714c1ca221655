import { Fencepost } from '../fencepost.ts'
import type { LeaseDetail } from '../operators/lease-detail.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { harmlessText, terminalWidth } from './fit.ts'
import { asJson, leaseJson } from './lease-json.ts'
import { seconds } from './lease-table.ts'
import { asTable } from './table.ts'

export interface ShowOptions extends DatabaseOptions {
  readonly json?: boolean
}

export async function runShow(name: string, options: ShowOptions): Promise<number> {
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const lease = await fencepost.describe(name)
  if (lease === undefined) {
    process.stderr.write(
      `fencepost: lease "${harmlessText(name)}" is unknown: it was never granted, or is forgotten\n`,
    )
    return exitCode.nothingThere
  }
  console.log(options.json === true ? asJson(detailJson(lease)) : asText(lease))
  return exitCode.done
}

/** The shape of `ls --json`, and three keys more. */
function detailJson(lease: LeaseDetail): Record<string, unknown> {
  return {
    ...leaseJson(lease),
    sequenceKind: lease.sequenceKind,
    transactions: lease.transactions.map(({ pid, state, role, application, since, ageMs }) => ({
      pid: pid ?? null,
      state: state ?? null,
      role: role ?? null,
      application: application ?? null,
      since: since?.toISOString() ?? null,
      ageMs: ageMs ?? null,
    })),
    forcedReleases: lease.forcedReleases.map(({ token, holder, host, pid, reason, at, by, cancelled }) => ({
      token: token.toString(),
      holder: holder ?? null,
      host: host ?? null,
      pid: pid ?? null,
      reason,
      at: at.toISOString(),
      by,
      cancelled,
    })),
  }
}

function asText(lease: LeaseDetail): string {
  const facts: [string, string | undefined][] = [
    ['lease', lease.name],
    ['state', lease.state],
    ['token', lease.state === 'free' ? `${lease.token} (of the last term)` : lease.token.toString()],
    ['holder', lease.holder === undefined ? undefined : whoIs(lease)],
    ['since', lease.since?.toISOString()],
    [lease.state === 'withheld' ? 'free in' : 'expires in', seconds(lease.remainingMs) || undefined],
    ['sequence', sequenceOf(lease)],
  ]
  const lines = facts.flatMap(([what, value]) =>
    value === undefined ? [] : [`${what.padEnd(12)}${harmlessText(value)}`],
  )
  return [lines.join('\n'), ...tables(lease, terminalWidth(process.stdout))].join('\n\n')
}

/** What is usual is left out. */
function sequenceOf({ sequence, sequenceKind }: LeaseDetail): string | undefined {
  if (sequenceKind === 'clock') return `${sequence} (by the clock)`
  return sequence === 'default' ? undefined : sequence
}

/** What there is none of is left out. */
function tables(lease: LeaseDetail, width: number | undefined): string[] {
  const { waiters, transactions, forcedReleases } = lease
  const waiting = waiters.map((waiter, index) => [
    String(index + 1),
    whoIs(waiter),
    waiter.since.toISOString(),
  ])
  const open = transactions.map(({ pid, state, role, application, ageMs }) => [
    pid?.toString() ?? '',
    state ?? '',
    seconds(ageMs),
    application ?? '',
    role ?? '',
  ])
  const forced = forcedReleases.map(({ at, token, holder, by, reason, cancelled }) => [
    at.toISOString(),
    token.toString(),
    holder ?? '',
    by,
    cancelled.join(' '),
    reason,
  ])
  return [
    ...(waiting.length === 0
      ? []
      : [asTable(['LINE', 'WAITING', 'SINCE'], waiting, ['right', 'left', 'left'], width)]),
    ...(open.length === 0
      ? []
      : [
          asTable(
            ['SESSION', 'FENCED TRANSACTION', 'AGE', 'APPLICATION', 'ROLE'],
            open,
            ['right', 'left', 'right', 'left', 'left'],
            width,
          ),
        ]),
    ...(forced.length === 0
      ? []
      : [
          asTable(
            ['RELEASED BY FORCE', 'TOKEN', 'FROM', 'BY', 'CANCELLED', 'REASON'],
            forced,
            ['left', 'right', 'left', 'left', 'left', 'left'],
            width,
          ),
        ]),
  ]
}

/** The label, and where it is, unless the label says that already. */
export function whoIs(participant: {
  readonly holder?: string | undefined
  readonly host?: string | undefined
  readonly pid?: number | undefined
}): string {
  const { holder = '', host, pid } = participant
  if (pid === undefined || holder === `${host}:${pid}`) return holder
  return `${holder} (pid ${pid}${host === undefined ? '' : ` on ${host}`})`
}

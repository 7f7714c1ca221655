import { InvalidArgumentError } from '../errors.ts'
import { durationMs, show } from '../duration.ts'
import { Fencepost } from '../fencepost.ts'
import type { ForcedRelease } from '../operators/force-release.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { harmlessText } from './fit.ts'
import { asJson } from './lease-json.ts'
import { progress } from './progress.ts'
import { whoIs } from './show.ts'

export interface ReleaseOptions extends DatabaseOptions {
  readonly token: string
  readonly reason: string
  readonly wait?: string
  readonly cancel?: boolean
  readonly json?: boolean
}

const codes: Readonly<Record<ForcedRelease['outcome'], number>> = {
  released: exitCode.done,
  'wrong-token': exitCode.nothingThere,
  'not-held': exitCode.nothingThere,
  draining: exitCode.notAcquired,
}

export async function runRelease(name: string, options: ReleaseOptions): Promise<number> {
  const { reason, cancel = false } = options
  const token = readToken('--token', options.token)
  const wait =
    options.wait === undefined ? undefined : durationMs('--wait', options.wait, { minMs: 0, maxMs: 300_000 })
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  using shown = progress('waiting for open fenced transactions')
  const result = await fencepost.forceRelease(name, token, { reason, cancel, wait })
  shown.done()
  if (options.json === true) console.log(asJson(resultJson(name, result)))
  else if (result.outcome === 'released') console.log(asText(name, result))
  if (result.outcome !== 'released') process.stderr.write(`fencepost: ${asText(name, result)}\n`)
  return codes[result.outcome]
}

/**
 * A token as a command takes it: digits.
 *
 * @throws InvalidArgumentError
 */
export function readToken(option: string, text: string): bigint {
  if (/^\d{1,19}$/.test(text)) return BigInt(text)
  throw new InvalidArgumentError(option, text, `${option} must be a number without a sign; got ${show(text)}`)
}

function resultJson(name: string, result: ForcedRelease): Record<string, unknown> {
  const { outcome, token, holder, host, pid, since, next, cancelled } = result
  return {
    outcome,
    lease: name,
    token: token?.toString() ?? null,
    holder: holder ?? null,
    host: host ?? null,
    pid: pid ?? null,
    since: since?.toISOString() ?? null,
    next: next === undefined ? null : { token: next.token.toString(), holder: next.holder },
    cancelled,
  }
}

function asText(name: string, result: ForcedRelease): string {
  const { outcome, token, since, next, cancelled } = result
  const lease = `lease "${name}"`
  const who = `${whoIs(result)}${since === undefined ? '' : ` since ${since.toISOString()}`}`
  const ended = cancelled.length === 0 ? '' : ` Sessions ended: ${cancelled.join(', ')}.`
  const text = {
    released:
      `released ${lease} (token ${token}) from ${who}.${ended} ` +
      (next === undefined
        ? 'Nobody was waiting for it.'
        : `It went to ${next.holder}, who waited for it, under token ${next.token}.`),
    'wrong-token':
      `${lease} has token ${token} now${result.holder === undefined ? ', and nobody holds it' : `, held by ${who}`}. ` +
      'Nothing was changed.',
    'not-held':
      token === undefined
        ? `${lease} is unknown: it was never granted, or is forgotten. Nothing was changed.`
        : `nobody holds ${lease}; its last token was ${token}. Nothing was changed.`,
    draining:
      `a fenced transaction of ${lease} (token ${token}) is still open, held by ${who}. Nothing was changed.${ended} ` +
      '"fencepost show" tells the sessions; --wait waits longer, --cancel ends them.',
  }[outcome]
  return harmlessText(text)
}

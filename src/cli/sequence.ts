import { Fencepost } from '../fencepost.ts'
import type { SequenceInfo, SequenceKind } from '../operators/sequences.ts'
import { InvalidArgumentError } from '../errors.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { harmlessText, terminalWidth } from './fit.ts'
import { asJson } from './lease-json.ts'
import { seconds } from './lease-table.ts'
import { asTable } from './table.ts'

export interface SequenceOptions extends DatabaseOptions {
  readonly kind?: SequenceKind
  readonly json?: boolean
}

export async function runSequence(name: string | undefined, options: SequenceOptions): Promise<number> {
  const { kind, json = false } = options
  if (kind !== undefined && name === undefined) {
    throw new InvalidArgumentError(
      'name',
      name,
      '--kind needs the name of the sequence: most leases draw from "default"',
    )
  }
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  if (name !== undefined && kind !== undefined) await fencepost.setSequenceKind(name, kind)
  const all = await fencepost.sequences()
  if (name === undefined) {
    console.log(json ? asJson(all.map(sequenceJson)) : asText(all))
    return exitCode.done
  }
  const one = all.find((sequence) => sequence.name === name)
  if (one === undefined) {
    process.stderr.write(
      `fencepost: sequence "${harmlessText(name)}" is unknown: nothing was drawn from it\n`,
    )
    return exitCode.nothingThere
  }
  console.log(json ? asJson(sequenceJson(one)) : asText([one]))
  return exitCode.done
}

function sequenceJson({ name, kind, lastToken, aheadMs }: SequenceInfo): Record<string, unknown> {
  return { sequence: name, kind, lastToken: lastToken.toString(), aheadMs: aheadMs ?? null }
}

function asText(sequences: readonly SequenceInfo[]): string {
  return asTable(
    ['SEQUENCE', 'KIND', 'LAST TOKEN', 'AHEAD'],
    sequences.map(({ name, kind, lastToken, aheadMs }) => [
      name,
      kind,
      lastToken.toString(),
      seconds(aheadMs),
    ]),
    ['left', 'left', 'right', 'right'],
    terminalWidth(process.stdout),
  )
}

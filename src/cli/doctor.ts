import { styleText } from 'node:util'
import { Fencepost } from '../fencepost.ts'
import type { DoctorReport, Finding, Severity } from '../doctor/finding.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'

export interface DoctorCommandOptions extends DatabaseOptions {
  readonly json?: boolean
  readonly strict?: boolean
}

export async function runDoctor(options: DoctorCommandOptions): Promise<number> {
  const report = await Fencepost.doctor({ connectionString: await databaseUrl(options) })
  console.log(options.json === true ? JSON.stringify(report, undefined, 2) : asText(report))
  const isBad = ({ severity }: Finding): boolean =>
    severity === 'error' || (options.strict === true && severity === 'warning')
  return report.findings.some(isBad) ? exitCode.failed : exitCode.done
}

const colours = { error: 'red', warning: 'yellow', note: 'cyan' } as const
const indent = ' '.repeat(9)
/** A fix that is longer than this is shown by its beginning: --json has all of it. */
const linesShown = 12

export function asText({ findings, checked }: DoctorReport): string {
  return [
    ...findings.map(findingText),
    `Checked: ${wrap(checked.join('; '), 'Checked: '.length, indent)}.`,
    '',
    verdict(findings),
  ].join('\n')
}

function findingText({ code, severity, object, what, fix, fixKind }: Finding): string {
  const head = `${styleText([colours[severity], 'bold'], severity.padEnd(8))} ${styleText('bold', code)}  ${object}`
  const kind = { sql: 'fix, in SQL:', command: 'fix:', advice: 'fix, by hand:' }[fixKind]
  return [head, `${indent}${wrap(what, indent.length, indent)}`, fixText(kind, fix, fixKind), ''].join('\n')
}

/** Prose is folded; what is meant to be copied is not. */
function fixText(kind: string, fix: string, fixKind: Finding['fixKind']): string {
  const lead = `${indent}${styleText('green', kind)} `
  if (fixKind === 'advice') return `${lead}${wrap(fix, indent.length + kind.length + 1, indent)}`
  const lines = fix.split('\n')
  if (lines.length === 1) return `${lead}${fix}`
  const shown = lines.length > linesShown ? lines.slice(0, 3) : lines
  const rest =
    shown.length === lines.length
      ? []
      : [`${indent}… and ${lines.length - shown.length} more lines: see --json`]
  return [lead.trimEnd(), ...shown.map((line) => `${indent}  ${line}`.trimEnd()), ...rest].join('\n')
}

function wrap(text: string, firstIndent: number, rest: string): string {
  const width = Math.max(60, Math.min(process.stdout.columns ?? 100, 100))
  let line = ' '.repeat(firstIndent)
  const lines: string[] = []
  for (const word of text.split(' ')) {
    if (line.trim() !== '' && line.length + 1 + word.length > width) {
      lines.push(line)
      line = rest + word
    } else {
      line += line.trim() === '' ? word : ` ${word}`
    }
  }
  return [...lines, line].join('\n').slice(firstIndent)
}

function verdict(findings: readonly Finding[]): string {
  const count = (severity: Severity): number =>
    findings.filter((finding) => finding.severity === severity).length
  const parts = (['error', 'warning', 'note'] as const)
    .filter((severity) => count(severity) > 0)
    .map((severity) => `${count(severity)} ${severity}${count(severity) === 1 ? '' : 's'}`)
  return parts.length === 0 ? 'Nothing found.' : `Found: ${parts.join(', ')}.`
}

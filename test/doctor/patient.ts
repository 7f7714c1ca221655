import { execFile } from 'node:child_process'
import { Client } from 'pg'
import { expect } from 'vitest'
import { examine } from '../../src/doctor/doctor.ts'
import type { Limits } from '../../src/doctor/examination.ts'
import type { DoctorReport, Finding, FindingCode, Severity } from '../../src/doctor/finding.ts'
import { program } from '../support/main-program.ts'

/** Something that is broken, found, mended by the fix that was printed, and then found no more. */
export interface Case {
  readonly code: FindingCode
  readonly severity: Severity
  readonly object: string
  /** What else is found, as `code object`: one fault is one finding, unless it says so here. */
  readonly others?: readonly string[]
  readonly breaks: readonly string[]
  /** What a person does where the fix is advice. */
  readonly mends?: readonly string[]
  /** What is tidied up afterwards. */
  readonly tidies?: readonly string[]
}

export async function run(url: string, statements: readonly string[]): Promise<void> {
  const client = new Client({ connectionString: url })
  client.on('error', () => {})
  await client.connect()
  try {
    for (const statement of statements) await client.query(statement)
  } finally {
    await client.end()
  }
}

/** Runs the fix as it is printed: SQL in the database, a command in a shell. */
export async function applyFix(url: string, { fix, fixKind }: Finding): Promise<void> {
  if (fixKind === 'advice') throw new Error(`a person has to do this: ${fix}`)
  if (fixKind === 'sql') {
    // As psql sends it: one statement at a time, unless one of them is a function with semicolons inside.
    await run(url, fix.includes('$$') ? [fix] : fix.split(/(?<=;)\n/))
    return
  }
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  execFile(
    'sh',
    ['-c', `fencepost() { "${program.join('" "')}" "$@"; }\n${fix}`],
    { env: { PATH: process.env['PATH'], FENCEPOST_DATABASE_URL: url } },
    (error, _stdout, stderr) => {
      if (error === null) resolve()
      else reject(new Error(`${fix}: ${stderr}`))
    },
  )
  await promise
}

export function examineAt(url: string, limits: Partial<Limits> = {}): Promise<DoctorReport> {
  return examine({ connectionString: url }, limits)
}

/** `code object` of every error and warning. What the test server itself is made of does not count. */
export function troubles({ findings }: DoctorReport): string[] {
  return findings
    .filter(({ severity, code }) => severity !== 'note' && code !== 'fsync-off')
    .map(({ code, object }) => `${code} ${object}`)
}

export function findingOf(report: DoctorReport, code: FindingCode, object?: string): Finding | undefined {
  return report.findings.find((one) => one.code === code && (object === undefined || one.object === object))
}

/** Breaks it, expects it to be found, mends it as it is told, and returns what is found then. */
export async function cure(url: string, { code, severity, object, ...rest }: Case): Promise<string[]> {
  await run(url, rest.breaks)
  const sick = await examineAt(url)
  const finding = findingOf(sick, code, object)
  expect(finding, JSON.stringify(sick.findings, undefined, 2)).toMatchObject({ code, severity, object })
  expect(finding!.what).toMatch(/\.$/)
  const own = severity === 'note' || code === 'fsync-off' ? [] : [`${code} ${object}`]
  expect(troubles(sick).toSorted()).toEqual([...own, ...(rest.others ?? [])].toSorted())
  if (rest.mends === undefined) await applyFix(url, finding!)
  else {
    expect(finding!.fixKind).toBe('advice')
    await run(url, rest.mends)
  }
  await run(url, rest.tidies ?? [])
  const well = await examineAt(url)
  expect(findingOf(well, code, object)).toBeUndefined()
  return troubles(well)
}

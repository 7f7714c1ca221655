import { execFile } from 'node:child_process'
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const here = fileURLToPath(new URL('.', import.meta.url))
const tsc = fileURLToPath(new URL('../../node_modules/typescript/bin/tsc', import.meta.url))

/** The compiler's errors in one file, checked with the project's settings. */
async function errorsIn(file: string): Promise<string[]> {
  const directory = join(file, '..')
  const project = join(directory, 'tsconfig.json')
  await writeFile(project, JSON.stringify({ extends: '../../../tsconfig.json', include: [file] }))
  const output = await promisify(execFile)(process.execPath, [tsc, '-p', project]).then(
    ({ stdout }) => stdout,
    ({ stdout }: { stdout: string }) => stdout,
  )
  return output.split('\n').filter((line) => line.includes('must-not-compile.ts('))
}

/** The examples of all docstrings and of the guides to waiting and operating, each as a function of its own with what a reader would have at hand. */
async function examples(): Promise<string[]> {
  const found: string[] = []
  const src = fileURLToPath(new URL('../../src/', import.meta.url))
  for (const entry of await readdir(src, { recursive: true, withFileTypes: true })) {
    if (!entry.name.endsWith('.ts')) continue
    const source = await readFile(join(entry.parentPath, entry.name), 'utf8')
    for (const [, block] of source.matchAll(/@example\s*\n\s*\* ```ts\n([^]*?)\n\s*\* ```/g)) {
      found.push(block!.replaceAll(/^\s*\* ?/gm, ''))
    }
  }
  for (const guide of ['waiting.md', 'operating.md']) {
    const text = await readFile(fileURLToPath(new URL(`../../docs/${guide}`, import.meta.url)), 'utf8')
    for (const [, block] of text.matchAll(/```ts\n([^]*?)```/g)) found.push(block!)
  }
  return found
}

const atHand = `import type { Generated, Kysely } from 'kysely'
import type { Client } from 'pg'
import type * as api from '../../../src/index.ts'
interface Database { accounts: { id: number; status: string; fence_token: Generated<string> } }
declare const db: Kysely<Database>
declare const client: Client
declare const fencepost: api.Fencepost
declare const lease: api.Lease
export {}
`

test('the examples of the docstrings and of the guides compile', async () => {
  const directory = await mkdtemp(join(here, 'tmp-'))
  try {
    const all = await examples()
    expect(all.length).toBeGreaterThanOrEqual(5)
    const imports = new Set<string>()
    const bodies = all.map((example, index) => {
      const body = example.replaceAll(/^import .*$/gm, (line) => (imports.add(line), ''))
      return `export async function example${index}(): Promise<void> {\n${body}\n}`
    })
    const source = [...imports, atHand, ...bodies]
      .join('\n')
      .replaceAll("'fencepost'", "'../../../src/index.ts'")
      .replaceAll("'fencepost/testing'", "'../../../src/testing/index.ts'")
    const file = join(directory, 'must-not-compile.ts')
    await writeFile(file, source)
    // Settings of this project that examples need not keep: unused names, and index signatures read with a dot.
    expect((await errorsIn(file)).filter((error) => !/TS(6133|6192|6196|2300|4111)/.test(error))).toEqual([])
  } finally {
    await rm(directory, { recursive: true })
  }
})

test('what must not compile does not, and what must does', async () => {
  const directory = await mkdtemp(join(here, 'tmp-'))
  try {
    const source = (await readFile(join(here, 'must-not-compile.ts'), 'utf8')).replaceAll(
      '../../src',
      '../../../src',
    )
    const file = join(directory, 'must-not-compile.ts')
    await writeFile(file, source)
    expect(await errorsIn(file)).toEqual([])
    // The same with the marks taken out: each of them was there for at least one error.
    const marks = source.match(/@ts-expect-error/g) ?? []
    expect(marks.length).toBeGreaterThan(20)
    await writeFile(file, source.replaceAll('@ts-expect-error', ''))
    const lines = new Set((await errorsIn(file)).map((error) => /\((\d+),/.exec(error)?.[1]))
    expect(lines.size).toBe(marks.length)
  } finally {
    await rm(directory, { recursive: true })
  }
})

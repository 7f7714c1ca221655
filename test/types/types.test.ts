import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
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

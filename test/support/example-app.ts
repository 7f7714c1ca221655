import { execFile } from 'node:child_process'
import { chmod, cp, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, onTestFinished } from 'vitest'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))

/** The text of a file of examples/. */
export function exampleText(name: string): Promise<string> {
  return readFile(join(root, 'examples', name), 'utf8')
}

/**
 * The app of examples/app with fencepost in its node_modules, as it is after a build: with a program in
 * node_modules/.bin that starts with `env node`.
 */
export class ExampleApp {
  #folder = ''

  get folder(): string {
    return this.#folder
  }

  /** A folder for the PATH, with the Node of these tests in it and nothing else. */
  get bin(): string {
    return join(this.#folder, 'bin')
  }

  /** What a program is given that is to find Node, and is to find nothing of the tests' own database. */
  environment(more: Readonly<Record<string, string>> = {}): Record<string, string> {
    return { PATH: [this.bin, '/usr/local/bin', '/usr/bin', '/bin'].join(delimiter), ...more }
  }

  async create(): Promise<void> {
    this.#folder = await mkdtemp(join(tmpdir(), 'fencepost-example-'))
    // Other users are to read it as well: what it is an example of does not run as root.
    await chmod(this.#folder, 0o755)
    await cp(join(root, 'examples/app'), this.#folder, { recursive: true })
    await mkdir(this.bin)
    await mkdir(join(this.#folder, 'etc'))
    await symlink(process.execPath, join(this.bin, 'node'))
    const modules = join(this.#folder, 'node_modules')
    await mkdir(join(modules, '.bin'), { recursive: true })
    for (const name of await readdir(join(root, 'node_modules'))) {
      if (!name.startsWith('.')) await symlink(join(root, 'node_modules', name), join(modules, name))
    }
    await mkdir(join(modules, 'fencepost'))
    for (const part of ['package.json', 'migrations']) {
      await cp(join(root, part), join(modules, 'fencepost', part), { recursive: true })
    }
    const dist = join(modules, 'fencepost/dist')
    const compiler = join(root, 'node_modules/typescript/bin/tsc')
    await execute(process.execPath, [compiler, '-p', 'tsconfig.build.json', '--noCheck', '--outDir', dist], {
      cwd: root,
    })
    await chmod(join(dist, 'cli/main.js'), 0o755)
    await symlink('../fencepost/dist/cli/main.js', join(modules, '.bin/fencepost'))
  }

  /** One more migration, for this test. */
  async addMigration(name: string, sql: string): Promise<void> {
    const file = join(this.#folder, 'migrations', name)
    await writeFile(file, sql)
    onTestFinished(() => rm(file))
  }

  /** The file of variables, as both systemd and a shell read it: without anything that either would expand. */
  async nameDatabase(url: string): Promise<void> {
    await writeFile(join(this.#folder, 'etc/database.env'), `DATABASE_URL='${url}'\n`)
  }

  async remove(): Promise<void> {
    if (this.#folder !== '') await rm(this.#folder, { recursive: true, force: true })
  }
}

/** An app for the tests of this file. */
export function useExampleApp(): ExampleApp {
  const app = new ExampleApp()
  beforeAll(() => app.create())
  afterAll(() => app.remove())
  return app
}

import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { connectionEnvironment } from '../../src/cli/demo-clients/program.ts'
import { packLibrary } from './packed-library.ts'

const execute = promisify(execFile)
const root = fileURLToPath(new URL('../../', import.meta.url))

/** A document, and the files that it shows, by the name that the comment before each gives. */
export class Document {
  readonly text: string
  readonly files: ReadonlyMap<string, string>

  private constructor(text: string) {
    this.text = text
    const blocks = text.matchAll(/<!-- file: (\S+) -->\n```\w+\n([^]*?)```/g)
    this.files = new Map([...blocks].map(([, name, code]) => [name!, code!]))
  }

  /** The path is relative to the top of the checkout. */
  static async read(path: string): Promise<Document> {
    return new Document(await readFile(join(root, path), 'utf8'))
  }

  named(ending: string): string[] {
    return [...this.files.keys()].filter((name) => name.endsWith(ending))
  }

  /** Those of the packages whose installed version the document does not name. */
  async versionsMissing(packages: readonly string[]): Promise<string[]> {
    const versions = packages.map(async (name) => {
      const manifest = await readFile(join(root, 'node_modules', name, 'package.json'), 'utf8')
      return `${name} ${(JSON.parse(manifest) as { version: string }).version}`
    })
    return (await Promise.all(versions)).filter(
      (version) => !['| ', ', '].some((before) => this.text.includes(before + version)),
    )
  }
}

/** A user's project: fencepost as it is published, all that is installed here, and the files of a document. */
export class UserProject implements AsyncDisposable {
  readonly folder: string

  private constructor(folder: string) {
    this.folder = folder
  }

  static async make(files: ReadonlyMap<string, string>): Promise<UserProject> {
    const project = new UserProject(await mkdtemp(join(tmpdir(), 'fencepost-project-')))
    try {
      await project.#install()
      await project.write('package.json', JSON.stringify({ private: true, type: 'module' }))
      for (const [name, code] of files) {
        // oxlint-disable-next-line no-await-in-loop -- A few small files.
        await project.write(name, code)
      }
      return project
    } catch (error) {
      await project[Symbol.asyncDispose]()
      throw error
    }
  }

  /** What a program of this project finds in its environment, and nothing of the settings of who runs the tests. */
  environment(url: string): NodeJS.ProcessEnv {
    const inherited = Object.entries(process.env).filter(
      ([name]) => !/^(PG|FENCEPOST_|PRISMA_|NODE_OPTIONS$)/.test(name),
    )
    const path = [this.#bin, join(root, 'node_modules/.bin'), process.env['PATH']]
    return {
      ...Object.fromEntries(inherited),
      ...connectionEnvironment(url),
      PATH: path.join(delimiter),
      DATABASE_URL: url,
      CHECKPOINT_DISABLE: '1',
    }
  }

  async write(name: string, content: string): Promise<void> {
    const file = join(this.folder, name)
    await mkdir(dirname(file), { recursive: true })
    await writeFile(file, content)
  }

  /** Makes a program known to those of this project. */
  async link(name: string, target: string): Promise<void> {
    await symlink(target, join(this.#bin, name))
  }

  /** Runs a program to its end, in this project. Resolves with what it has written to stdout. */
  async run(env: NodeJS.ProcessEnv, program: string, ...args: string[]): Promise<string> {
    return run({ cwd: this.folder, env }, program, args)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.folder, { recursive: true, force: true })
  }

  get #bin(): string {
    return join(this.folder, 'node_modules/.bin')
  }

  async #install(): Promise<void> {
    const modules = join(this.folder, 'node_modules')
    await mkdir(this.#bin, { recursive: true })
    const installed = await readdir(join(root, 'node_modules'))
    const packages = installed.filter((name) => !name.startsWith('.'))
    await Promise.all(packages.map((name) => symlink(join(root, 'node_modules', name), join(modules, name))))
    const own = join(modules, 'fencepost')
    await mkdir(own)
    const packing = await mkdtemp(join(tmpdir(), 'fencepost-packing-'))
    try {
      const { tarball } = await packLibrary(packing)
      await execute('tar', ['-xzf', tarball, '--strip-components=1', '-C', own])
    } finally {
      await rm(packing, { recursive: true, force: true })
    }
    const main = join(own, 'dist/cli/main.js')
    await this.link('fencepost', main)
  }
}

async function run(
  options: { readonly cwd: string; readonly env: NodeJS.ProcessEnv },
  program: string,
  args: readonly string[],
): Promise<string> {
  try {
    return (await execute(program, args, options)).stdout
  } catch (error) {
    // The compiler writes its findings to stdout.
    if (error instanceof Error && 'stdout' in error) error.message += `\n${String(error.stdout)}`
    throw error
  }
}

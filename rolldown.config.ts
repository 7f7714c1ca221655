import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { type Plugin, type RolldownOptions, defineConfig } from 'rolldown'

/**
 * Two bundles: what a service imports, which is our own code alone, and the command line, whose chunks are loaded when they are
 * needed. Reading a few files instead of a hundred is most of what `fencepost run` can save before its command starts. The types are
 * left to the compiler.
 */
const shared: RolldownOptions = {
  platform: 'node',
  transform: { target: 'node22.12' },
}

/** Our own files, and the helper for `using`, which Node 22 does not know. */
const own = /^([./]|@oxc-project.runtime)/
/** What every command needs. Read from the bundle it is there in a third of the time. */
const bundled = /^(commander|pg|pgpass|split2|xtend(\/mutable)?|(pg|postgres)-(?!native|cloudflare)[\w-]+)$/

/** What few services need, and none at its start, is read when it is first used. */
const later = /src.(doctor|operators|package-directory|fence.protection\.|database.migrat)/
const operators = { name: 'operators', test: /src.operators./ }

/** What a service never reads: an entry of its own. */
const testKit = /src.testing./

/** All else of the library is one file: to find, to read and to compile each takes time of its own. */
const library = [
  operators,
  {
    name: 'core',
    test: (id: string) => !later.test(id) && !testKit.test(id) && !/src.index\.ts$/.test(id),
  },
]

/** Each part of the program that is needed at one moment is one file. */
const groups = [
  {
    // Before anything else is read, passwords are covered and signals are heard.
    name: 'first',
    test: /src.(errors|cli.(exit-code|hidden-passwords|leave|notices|signal-guard|commands.invocation))\.ts$/,
  },
  {
    name: 'start',
    test: /src.(clock|duration|logger|package-directory|lease.name|cli.(database-url|grace|run-options|run-report|voice)|database.(connect-options|connection|failure|grants|schema))\.ts$|usingCtx|node_modules.(pg|pgpass|split2|xtend|(pg|postgres)-[\w-]+)./,
  },
  { name: 'parser', test: /src.cli.commands.(program|manual|run)\.ts$|node_modules.commander./ },
  {
    name: 'lease',
    test: (id: string) =>
      /src.(fencepost|lease.[a-z-]+|fence.[a-z-]+|roles.[a-z-]+|database.listener)\.ts$/.test(id) &&
      !later.test(id),
  },
  operators,
]

interface Manifest {
  readonly name: string
  readonly version: string
  readonly license?: string
  readonly author?: string | { readonly name: string }
}

/** What is copied from others comes with their licenses. */
const licenses: Plugin = {
  name: 'licenses',
  generateBundle(_, bundle) {
    const ids = Object.values(bundle).flatMap((file) => (file.type === 'chunk' ? file.moduleIds : []))
    const folders = new Set(
      ids.flatMap((id) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(id)?.[0] ?? []),
    )
    const texts = [...folders].toSorted().map((folder) => {
      const manifest = join(folder, 'package.json')
      if (!existsSync(manifest)) throw new Error(`${folder} is no package`)
      const { name, version, license, author } = JSON.parse(readFileSync(manifest, 'utf8')) as Manifest
      const file = readdirSync(dirname(manifest)).find((each) => /^licen[cs]e/i.test(each))
      if (license === undefined) throw new Error(`${folder} has no license`)
      const by = typeof author === 'object' ? author.name : author
      const text = file === undefined ? `by ${by}` : readFileSync(join(folder, file), 'utf8').trim()
      return `${name} ${version} (${license})\n\n${text}`
    })
    this.emitFile({
      type: 'asset',
      fileName: 'licenses.txt',
      source: `${texts.join(`\n\n${'-'.repeat(72)}\n\n`)}\n`,
    })
  },
}

export default defineConfig([
  {
    ...shared,
    input: { index: 'src/index.ts', 'testing/index': 'src/testing/index.ts' },
    external: (id) => !own.test(id),
    // So that what is read later brings nothing of `core` with it into its own file. `index.js` exports what it did: there is a test.
    preserveEntrySignatures: 'allow-extension',
    output: {
      dir: 'dist',
      format: 'esm',
      chunkFileNames: '[name].js',
      comments: false,
      codeSplitting: { includeDependenciesRecursively: false, groups: library },
    },
  },
  {
    ...shared,
    input: { main: 'src/cli/main.ts', 'demo-worker': 'src/cli/demo-worker.ts' },
    external: (id) => !own.test(id) && !bundled.test(id),
    plugins: [licenses],
    output: {
      dir: 'dist/cli',
      format: 'esm',
      chunkFileNames: '[name].js',
      minify: true,
      // Errors tell their names.
      keepNames: true,
      codeSplitting: { groups },
    },
  },
])

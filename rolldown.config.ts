import { defineConfig, type RolldownOptions } from 'rolldown'

/**
 * Two bundles of our own code alone: what a service imports, and the command line, whose chunks are loaded when they are needed.
 * Reading a few files instead of sixty is most of what `fencepost run` can save before its command starts. The types are left to the
 * compiler.
 */
const shared: RolldownOptions = {
  platform: 'node',
  transform: { target: 'node22.12' },
  // The helper for `using`, which Node 22 does not know, is part of the bundle.
  external: (id) => !/^([./]|@oxc-project.runtime)/.test(id),
}

/** Each part of the program that is needed at one moment is one file. */
const groups = [
  {
    name: 'start',
    test: /src.(clock|duration|errors|logger|package-directory|lease.name|cli.(database-url|exit-code|grace|run-options|run-report)|database.(connect-options|connection|failure|grants|schema))\.ts$|usingCtx/,
  },
  {
    name: 'lease',
    test: /src.(fencepost|lease.[a-z-]+|fence.[a-z-]+|roles.[a-z-]+|operators.[a-z-]+|database.listener)\.ts$/,
  },
]

export default defineConfig([
  {
    ...shared,
    input: 'src/index.ts',
    output: { dir: 'dist', format: 'esm', chunkFileNames: '[name].js', comments: false },
  },
  {
    ...shared,
    input: { main: 'src/cli/main.ts', 'demo-worker': 'src/cli/demo-worker.ts' },
    output: {
      dir: 'dist/cli',
      format: 'esm',
      chunkFileNames: '[name].js',
      comments: false,
      codeSplitting: { groups },
    },
  },
])

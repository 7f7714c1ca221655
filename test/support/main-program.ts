import { fileURLToPath } from 'node:url'

const isBuilt = process.env['FENCEPOST_TEST_BUILT'] === 'yes'
const main = isBuilt ? '../../dist/cli/main.js' : '../../src/cli/main.ts'

/**
 * What stands for `fencepost` in tests that start it: the source on the Node of the tests; with FENCEPOST_TEST_BUILT=yes what
 * `npm run build` has made, on the Node that FENCEPOST_TEST_NODE names.
 */
export const program: readonly [node: string, main: string] = [
  (isBuilt ? process.env['FENCEPOST_TEST_NODE'] : undefined) ?? process.execPath,
  fileURLToPath(new URL(main, import.meta.url)),
]

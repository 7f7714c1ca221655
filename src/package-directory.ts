import { createRequire } from 'node:module'
import { dirname } from 'node:path'

/** Where this package is, wherever in it the build has put this function. */
export function packageDirectory(): string {
  return dirname(createRequire(import.meta.url).resolve('fencepost/package.json'))
}

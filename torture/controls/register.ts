// Weakens the library as it is loaded: `FENCEPOST_TORTURE_CONTROL=NAME node --import …/torture/controls/register.ts …`.
import { readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'
import { exchange } from './control.ts'
import { controlNamed, controlVariable } from './controls.ts'

const name = process.env[controlVariable]
if (name === undefined || name === '') throw new Error(`${controlVariable} does not name a control`)

const source = new URL('../../src/', import.meta.url)
const weakened = new Map<string, string>()
// All of them at once, so that a control that does not fit is noticed also where the module is not needed.
for (const [path, pieces] of Object.entries(controlNamed(name).modules ?? {})) {
  const url = new URL(path, source)
  weakened.set(url.href, exchange(readFileSync(url, 'utf8'), pieces, `src/${path}`))
}

registerHooks({
  load(url, context, nextLoad) {
    const text = weakened.get(url)
    return text === undefined
      ? nextLoad(url, context)
      : { format: 'module-typescript', source: text, shortCircuit: true }
  },
})

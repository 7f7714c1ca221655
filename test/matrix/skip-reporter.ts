import { appendFileSync } from 'node:fs'
import type { Reporter, TestModule } from 'vitest/node'

/** Writes down why each skipped test was skipped, one reason a line, in the file that FENCEPOST_MATRIX_SKIPPED names. */
export default class SkipReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const file = process.env['FENCEPOST_MATRIX_SKIPPED']
    if (file === undefined) return
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const result = test.result()
        if (result.state !== 'skipped') continue
        // A whole group bears its reason in its name.
        const named = /\(skipped: (.*?)\)/.exec(test.fullName)?.[1]
        appendFileSync(file, `${result.note ?? named ?? `without a reason: ${test.fullName}`}\n`)
      }
    }
  }
}

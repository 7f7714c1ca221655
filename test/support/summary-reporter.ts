import { appendFileSync } from 'node:fs'
import type { Reporter, SerializedError, TestModule, TestRunEndReason, Vitest } from 'vitest/node'

interface Counts {
  passed: number
  failed: number
  skipped: number
}

/**
 * Prints `N passed, N failed, N skipped` as the last line of a run, and appends the same numbers as one line of
 * JSON to the file that FENCEPOST_TEST_SUMMARY names.
 *
 * A run that exits with an error never prints `0 failed`: a file that cannot be imported, a hook that throws, an
 * error outside all tests and a global setup or teardown that fails each count as failed.
 */
export default class SummaryReporter implements Reporter {
  #counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  #watching = false

  onInit(vitest: Vitest): void {
    this.#watching = vitest.config.watch
    if (this.#watching) return
    // Coverage, teardown and other reporters still print after the end of the run, and a teardown may still fail,
    // so the line waits for the exit itself. It also comes when a global setup fails and no run takes place.
    process.once('exit', (code) => {
      if (code !== 0 && this.#counts.failed === 0) this.#counts.failed = 1
      this.#print()
    })
  }

  onTestRunEnd(
    modules: readonly TestModule[],
    unhandledErrors: readonly SerializedError[],
    reason: TestRunEndReason,
  ): void {
    this.#counts = count(modules)
    this.#counts.failed += unhandledErrors.length
    if (reason !== 'passed' && this.#counts.failed === 0) this.#counts.failed = 1
    if (this.#watching) this.#print()
  }

  #print(): void {
    const { passed, failed, skipped } = this.#counts
    const file = process.env['FENCEPOST_TEST_SUMMARY']
    if (file !== undefined && file !== '')
      appendFileSync(file, `${JSON.stringify({ passed, failed, skipped })}\n`)
    console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`)
  }
}

function count(modules: readonly TestModule[]): Counts {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (const module of modules) {
    // The errors of a file or of a describe block are those outside its tests: an import or a hook that threw.
    if (module.errors().length > 0) counts.failed += 1
    for (const suite of module.children.allSuites()) {
      if (suite.errors().length > 0) counts.failed += 1
    }
    for (const test of module.children.allTests()) {
      const { state } = test.result()
      // A test that is still pending when the run is over was cut off, which is no success.
      counts[state === 'pending' ? 'failed' : state] += 1
    }
  }
  return counts
}

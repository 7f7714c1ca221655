import { appendFileSync } from 'node:fs'
import { stripVTControlCharacters } from 'node:util'
import type { Reporter, SerializedError, TestModule, TestRunEndReason, Vitest } from 'vitest/node'

interface Counts {
  passed: number
  failed: number
  skipped: number
}

/**
 * Prints `N passed, N failed, N skipped` as the last line of a run, and appends the same numbers as one line of
 * JSON to the file that FENCEPOST_TEST_SUMMARY names. What failed, and why, is appended to the file that
 * FENCEPOST_TEST_FAILURES names, for a log of which only the end is read.
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
    report(modules, unhandledErrors)
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

function report(modules: readonly TestModule[], unhandledErrors: readonly SerializedError[]): void {
  const file = process.env['FENCEPOST_TEST_FAILURES']
  if (file === undefined || file === '') return
  const tell = (where: string, errors: readonly SerializedError[]): void => {
    for (const error of errors) appendFileSync(file, `${where}\n${indented(error)}\n`)
  }
  for (const module of modules) {
    tell(module.relativeModuleId, module.errors())
    for (const suite of module.children.allSuites()) {
      tell(`${module.relativeModuleId} > ${suite.fullName}`, suite.errors())
    }
    for (const test of module.children.allTests()) {
      const where = `${module.relativeModuleId} > ${test.fullName}`
      const { state, errors } = test.result()
      if (state === 'failed') tell(where, errors)
      else if (state === 'pending') appendFileSync(file, `${where}\n  cut off\n`)
    }
  }
  tell('outside all tests', unhandledErrors)
}

/** What went wrong, what was compared, and where in the tests: enough to begin with, short enough to be read. */
function indented(error: SerializedError): string {
  const frames = error.stacks?.map(({ file, line, method }) => `at ${method} ${file}:${String(line)}`) ?? []
  const diff = typeof error['diff'] === 'string' ? error['diff'] : ''
  const text = [error.message, diff, ...frames.slice(0, 5)].join('\n')
  const lines = stripVTControlCharacters(text).split('\n')
  return lines
    .filter((line) => line.trim() !== '')
    .slice(0, 40)
    .map((line) => `  ${line}`)
    .join('\n')
}

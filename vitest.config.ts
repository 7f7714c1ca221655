import { defineConfig } from 'vitest/config'
import SummaryReporter from './test/support/summary-reporter.ts'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    reporters: ['default', new SummaryReporter()],
    // Every file has a database of its own on one server, and many wait for processes: three at a time keep two cores busy.
    maxWorkers: 3,
    // A test that takes so long hangs. None of them waits for time to pass where an event will do.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // What is waited for comes from other processes, which may have to wait for a processor. The default is a second.
    expect: { poll: { timeout: 30_000, interval: 10 } },
  },
})

// npm run torture [-- OPTIONS]: see torture/README.md.
import { UsageError, readOptions, usage } from './run/options.ts'
import { run } from './run/run.ts'

try {
  const options = readOptions(process.argv.slice(2))
  if (options === 'help') console.log(usage)
  else {
    console.log(`seed ${options.seed}`)
    await run(options)
  }
} catch (error) {
  if (!(error instanceof UsageError)) throw error
  console.error(error.message)
  process.exitCode = 2
}

// npm run torture [-- OPTIONS]: see torture/README.md.
import { UsageError, readOptions, usage } from './run/options.ts'
import { run } from './run/run.ts'

try {
  const options = readOptions(process.argv.slice(2))
  if (options === 'help') console.log(usage)
  else {
    console.log(`seed ${options.seed}`)
    const interrupted = new AbortController()
    process.on('SIGINT', () => interrupted.abort())
    const outcome = await run(
      options,
      {
        unavailable: (fault, why) => console.log(`${fault}: ${why}`),
        progress: (ms, figures) => console.log(Math.round(ms), JSON.stringify(figures)),
      },
      interrupted.signal,
    )
    console.log(outcome)
  }
} catch (error) {
  if (!(error instanceof UsageError)) throw error
  console.error(error.message)
  process.exitCode = 2
}

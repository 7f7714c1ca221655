/** `npm run matrix`: the tests with other versions of PostgreSQL and Node than fencepost is developed with, one pair after the other. */
import { installMatrix } from './installed.ts'
import { readOptions, usage } from './options.ts'
import { nameOf, runPair, type Result } from './run-pair.ts'
import { reasonsFor, table } from './table.ts'

const options = readOptions(process.argv.slice(2))
if (options === '') {
  console.log(usage)
  process.exit(0)
}
if (typeof options === 'string') {
  console.error(`${options}\n\n${usage}`)
  process.exit(2)
}
if (options.pairs.some(({ postgres, node }) => postgres !== '18' || node !== '24')) await installMatrix()
const results: Result[] = []
for (const pair of options.pairs) {
  console.log(`\n== ${nameOf(pair)}`)
  // oxlint-disable-next-line no-await-in-loop -- Each wants the machine for itself.
  results.push(await runPair(pair, options.tests))
}
console.log(`\n${table(results)}${reasonsFor(results)}`)
process.exitCode = results.some(({ failed }) => failed > 0) ? 1 : 0

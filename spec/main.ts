import { spawnSync } from 'node:child_process'
import { parseArgs } from 'node:util'
import { type Checked, checkAll } from './checks.ts'
import { quint } from './compiled-model.ts'

// `npm run spec`: types, scenarios and simulations by Quint itself, then every state that can be told apart, then what breaks without each of
// the things that keep the protocol safe.

const usage = `npm run spec [-- OPTIONS]

  --full     every state of one server, and failovers as far as nine steps
  --seed N   other random runs of Quint's simulator; default 1
  --help     shows this

Exit code: 0 all is as expected, 1 it is not, 2 wrong arguments.`

const values = read(process.argv.slice(2))
if (values === undefined || values.help) process.exit(values === undefined ? 2 : 0)
const folder = new URL('.', import.meta.url).pathname

/** Undefined: they are wrong, and it has said so. */
function read(args: string[]): { full: boolean; seed: string; help: boolean } | undefined {
  try {
    const { values: given } = parseArgs({
      args,
      options: {
        full: { type: 'boolean', default: false },
        seed: { type: 'string', default: '1' },
        help: { type: 'boolean', default: false },
      },
    })
    if (!/^(\d+|0x[\da-f]+)$/i.test(given.seed))
      throw new Error(`--seed takes a whole number, not "${given.seed}".`)
    if (given.help) console.log(usage)
    return given
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${usage}`)
    return undefined
  }
}

function runQuint(...args: readonly string[]): void {
  console.log(`\nquint ${args.join(' ')}`)
  const { status } = spawnSync(process.execPath, [quint, ...args], {
    cwd: folder,
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  if (status !== 0) process.exit(1)
}

runQuint('typecheck', 'controls.qnt')
runQuint('test', '--backend=typescript', '--main=scenarios', 'scenarios.qnt')
const simulation = [
  'run',
  '--backend=typescript',
  '--verbosity=1',
  '--invariant=safe',
  '--max-steps=25',
  `--seed=${values.seed}`,
]
runQuint(...simulation, '--main=sound', '--step=livelyStep', '--max-samples=200', 'controls.qnt')
runQuint(...simulation, '--main=crowd', '--step=lively', '--max-samples=200', 'controls.qnt')
runQuint(...simulation, '--main=clockTokens', '--step=livelyStep', '--max-samples=200', 'controls.qnt')

function show({ name, isAsExpected, explored, seconds }: Checked): void {
  const { states, steps, depth, isComplete, violation, unseen } = explored
  const bound = isComplete ? 'all there are' : 'as far as it went'
  console.log(
    `\n${isAsExpected ? 'ok' : 'NOT OK'}  ${name}: ${states} states (${bound}), ${steps} steps, depth ${depth}, ${seconds.toFixed(1)} s of CPU`,
  )
  if (unseen.length > 0) console.log(`  never seen: ${unseen.join(', ')}`)
  if (violation === undefined) return
  const must = isAsExpected ? ', as it must' : ''
  console.log(`  ${violation.invariant} breaks in ${violation.path.length} steps${must}:`)
  for (const { label, state } of violation.path) {
    const [action, ...args] = label
    const given = args.map((arg) => JSON.stringify(arg)).join(', ')
    console.log(`    ${action}(${given})${state.answer === '' ? '' : `  ${state.answer}`}`)
  }
}

console.log('\nexploring every state that can be told apart; the first lines take up to a minute')
let isAsExpected = true
for await (const checked of checkAll(`${folder}controls.qnt`, values.full)) {
  show(checked)
  isAsExpected &&= checked.isAsExpected
}
console.log(
  isAsExpected ? '\nEverything is as expected.' : '\nNot everything is as expected: see NOT OK above.',
)
process.exit(isAsExpected ? 0 : 1)

import { spawnSync } from 'node:child_process'
import { parseArgs } from 'node:util'
import { type Checked, checkAll } from './checks.ts'
import { quint } from './compiled-model.ts'

// `npm run spec`: types, scenarios and simulations by Quint itself, then every state that can be told apart, then what breaks without each of
// the things that keep the protocol safe.

const { values } = parseArgs({
  options: { full: { type: 'boolean', default: false }, seed: { type: 'string', default: '1' } },
})
const folder = new URL('.', import.meta.url).pathname

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
  console.log(`  ${violation.invariant} breaks in ${violation.path.length} steps:`)
  for (const { label, state } of violation.path) {
    const [action, ...args] = label
    const given = args.map((arg) => JSON.stringify(arg)).join(', ')
    console.log(`    ${action}(${given})${state.answer === '' ? '' : `  ${state.answer}`}`)
  }
}

let isAsExpected = true
for await (const checked of checkAll(`${folder}controls.qnt`, values.full)) {
  show(checked)
  isAsExpected &&= checked.isAsExpected
}
process.exit(isAsExpected ? 0 : 1)

import { durationMs } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { type Fence, fenceEnvironment, inheritedFence } from '../fence/fence.ts'
import { Fencepost } from '../fencepost.ts'
import { checkName } from '../lease/name.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode, exitCodeOf } from './exit-code.ts'
import { ownPgOptions, pgOptionsWith } from './pg-options.ts'

export interface EnvOptions extends DatabaseOptions {
  readonly ttl: string
  readonly label?: string
  readonly end?: boolean
}

const dayMs = 86_400_000
/** Names the holder of a term that is the shell's own, so that `--end` never ends that of a `fencepost run`. */
const fixedVariable = 'FENCEPOST_FIXED_TERM'

/**
 * Prints what a shell needs to have its programs fenced, as `export` statements for `eval`. Under `fencepost run` of the
 * lease that is the runner's term; otherwise a term that nobody renews.
 */
export async function runEnv(name: string, options: EnvOptions): Promise<number> {
  try {
    return await print(name, options)
  } catch (error) {
    // So that eval fails as well, and a shell that stops at errors does not go on without a fence.
    console.log(`(exit ${exitCodeOf(error)})`)
    throw error
  }
}

async function print(name: string, options: EnvOptions): Promise<number> {
  checkName('the name of a lease', name)
  const inherited = process.env['FENCEPOST_LEASE'] === name ? inheritedFence() : undefined
  const isFixed = inherited !== undefined && process.env[fixedVariable] === inherited.term.holderId
  if (options.end === true) {
    if (inherited === undefined || !isFixed) {
      throw new InvalidArgumentError(
        '--end',
        name,
        `this shell has no term of lease "${name}" that "fencepost env" took. A runner's term ends with its command.`,
      )
    }
    await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
    await fencepost.endFixedTerm(inherited)
    for (const variable of [...Object.keys(fenceEnvironment(inherited.term)), fixedVariable])
      console.log(`unset ${variable}`)
    // The shell's own options stay.
    const own = ownPgOptions()
    if (own === '') console.log('unset PGOPTIONS')
    else show({ PGOPTIONS: own })
    return exitCode.done
  }
  if (inherited !== undefined && !isFixed) {
    show(environmentOf(inherited))
    return exitCode.done
  }
  // The command line is no place for test-sized TTLs, so the library's own bounds hold.
  const ttlMs = durationMs('--ttl', options.ttl, { minMs: 1000, maxMs: dayMs })
  if (options.label !== undefined) checkName('--label', options.label)
  await using fencepost = await Fencepost.open({
    connectionString: await databaseUrl(options),
    label: options.label ?? `${process.env['USER'] ?? 'somebody'}'s shell`,
  })
  const fence = await fencepost.takeFixedTerm(name, { ttl: ttlMs })
  show({ ...environmentOf(fence), [fixedVariable]: fence.term.holderId })
  return exitCode.done
}

function environmentOf({ term }: Fence): Record<string, string> {
  return { ...fenceEnvironment(term), PGOPTIONS: pgOptionsWith(term) }
}

function show(environment: Readonly<Record<string, string>>): void {
  for (const [variable, value] of Object.entries(environment)) {
    console.log(`export ${variable}='${value.replaceAll("'", String.raw`'\''`)}'`)
  }
}

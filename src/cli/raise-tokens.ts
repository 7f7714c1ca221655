import { Fencepost } from '../fencepost.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { asJson } from './lease-json.ts'
import { readToken } from './release.ts'

export interface RaiseTokensOptions extends DatabaseOptions {
  readonly above: string
  readonly sequence: string
  readonly json?: boolean
}

export async function runRaiseTokens(options: RaiseTokensOptions): Promise<number> {
  const { sequence } = options
  const floor = readToken('--above', options.above)
  await using fencepost = await Fencepost.open({ connectionString: await databaseUrl(options) })
  const lastToken = await fencepost.raiseTokenFloor(floor, { sequence })
  console.log(
    options.json === true
      ? asJson({ sequence, lastToken: lastToken.toString() })
      : `sequence "${sequence}": every token from now on is greater than ${lastToken}`,
  )
  return exitCode.done
}

import type { DemoClient } from './demo-client.ts'
import { ProgramError, isThere, programClient } from './program.ts'

const script = `
insert into fencepost_demo_line (balance, fence_token) values (:balance, :token);
update fencepost_demo set balance = :balance, fence_token = :token where id = 1;
`

export async function missing(): Promise<string | undefined> {
  return (await isThere('psql', '--version'))
    ? undefined
    : "the program psql is not installed: it is among PostgreSQL's client programs (Debian: postgresql-client)"
}

export async function open(url: string): Promise<DemoClient> {
  return programClient(
    url,
    ({ balance, token }) => ({
      program: 'psql',
      args: [
        ...['--no-psqlrc', '--quiet', '--single-transaction', '--file=-'],
        ...['ON_ERROR_STOP=1', 'VERBOSITY=verbose', `balance=${balance}`, `token=${token}`].map(
          (variable) => `--set=${variable}`,
        ),
      ],
      input: script,
    }),
    read,
  )
}

/** psql:<stdin>:3: ERROR:  FP001: token 1 of lease "x" is stale, and a line with the detail. */
function read(stderr: string): ProgramError {
  const [, code, message] = /: {2}([0-9A-Z]{5}): (.*)/.exec(stderr) ?? []
  const [, detail] = /^\w+: {2}(\{.*\})$/m.exec(stderr) ?? []
  return new ProgramError(message ?? stderr, code, detail)
}

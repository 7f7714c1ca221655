import { spawn } from 'node:child_process'
import { Client } from 'pg'
import { type Fence, fencePgOptions } from '../../fence/fence.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

/** What a program said when a statement of it failed. `code` is the SQLSTATE, as in errors of `pg`. */
export class ProgramError extends Error {
  readonly code: string | undefined
  readonly detail: string | undefined

  constructor(message: string, code?: string, detail?: string) {
    super(message)
    this.name = 'ProgramError'
    this.code = code
    this.detail = detail
  }
}

/** One run of a program. */
export interface Run {
  readonly program: string
  readonly args: readonly string[]
  readonly input?: string
}

/**
 * A client that is another program, run once for each write. It knows nothing of leases: the fence reaches the database
 * through PGOPTIONS, which libpq sends along when it connects.
 */
export function programClient(
  url: string,
  run: (write: DemoWrite) => Run,
  read: (stderr: string) => ProgramError,
): DemoClient {
  const environment = { ...process.env, ...connectionEnvironment(url) }
  const write = async (what: DemoWrite, options: NodeJS.ProcessEnv): Promise<void> => {
    const { code, stderr } = await execute(run(what), { ...environment, ...options })
    if (code !== 0) throw read(stderr)
  }
  return {
    fenced: (fence, what) => write(what, fenceOptions(fence)),
    unfenced: (what) => write(what, {}),
    async close() {},
  }
}

/** The fence for a program that is built on libpq, or on Node's `pg`: it need not know of it. */
export function fenceOptions({ term }: Fence): { PGOPTIONS: string } {
  const inherited = process.env['PGOPTIONS'] ?? ''
  return { PGOPTIONS: `${inherited} ${fencePgOptions(term)}`.trimStart() }
}

/** The database for libpq. In the environment, because everybody may see a program's arguments. */
export function connectionEnvironment(url: string): NodeJS.ProcessEnv {
  const { host, port, user, password, database } = new Client({ connectionString: url })
  const sslMode = new URL(url).searchParams.get('sslmode')
  return {
    PGHOST: host,
    PGPORT: String(port),
    PGUSER: user,
    PGDATABASE: database,
    ...(typeof password === 'string' ? { PGPASSWORD: password } : {}),
    ...(sslMode === null ? {} : { PGSSLMODE: sslMode }),
  }
}

/** Runs a program to its end. Rejects with ENOENT when there is none of that name. */
export async function execute(
  { program, args, input }: Run,
  env: NodeJS.ProcessEnv = process.env,
): Promise<{ code: number | null; stderr: string }> {
  const child = spawn(program, args, { env, stdio: ['pipe', 'ignore', 'pipe'] })
  const { promise, resolve, reject } = Promise.withResolvers<{ code: number | null; stderr: string }>()
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  // It may end before it has read everything.
  child.stdin.on('error', () => {}).end(input)
  child.once('error', reject)
  child.once('close', (code) => resolve({ code, stderr }))
  return promise
}

/** Whether the program can be run with these arguments. */
export async function isThere(program: string, ...args: string[]): Promise<boolean> {
  try {
    return (await execute({ program, args })).code === 0
  } catch {
    return false
  }
}

/** What the demo's own scripts print when a statement fails: one line of JSON. */
export function readJson(stderr: string): ProgramError {
  try {
    const told = JSON.parse(stderr) as { message: string; sqlstate: string; detail: string | null }
    return new ProgramError(told.message, told.sqlstate, told.detail ?? undefined)
  } catch {
    return new ProgramError(stderr)
  }
}

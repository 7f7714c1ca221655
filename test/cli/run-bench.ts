import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll } from 'vitest'
import { Cli, type CliResult, eventually, runCli } from '../support/cli.ts'
import { type TestDatabase, useDatabase } from '../support/database.ts'

/** A command that says "ready" and ends with its standard input, so that the test decides for how long it runs. */
const patient = ['sh', '-c', 'echo ready; read line; echo "read $line"']

/** What the tests of `fencepost run` share: a database, a folder for marker files, and names that are used once. */
export class RunBench {
  readonly database: TestDatabase = useDatabase()
  #directory = ''
  #count = 0

  constructor() {
    beforeAll(async () => {
      this.#directory = await mkdtemp(join(tmpdir(), 'fencepost-run-'))
    })
    afterAll(() => rm(this.#directory, { recursive: true, force: true }))
  }

  newName(): string {
    this.#count += 1
    return `job-${this.#count}`
  }

  /** The path of a file that does not exist yet. */
  newFile(): string {
    this.#count += 1
    return join(this.#directory, `marker-${this.#count}`)
  }

  /** `fencepost run ARGS -- COMMAND` to its end. */
  run(args: readonly string[], command: readonly string[], url = this.database.url): Promise<CliResult> {
    return runCli(['run', ...args, '--', ...command], { url })
  }

  /** `fencepost run ARGS -- COMMAND` until the command has said "ready". */
  async startReady(
    args: readonly string[],
    command: readonly string[] = patient,
    url = this.database.url,
  ): Promise<Cli> {
    const cli = new Cli(['run', ...args, '--', ...command], { url })
    await cli.says('ready')
    return cli
  }

  async stateOf(lease: string): Promise<string | undefined> {
    const [row] = await this.database.query<{ state: string }>(
      'select state from fencepost.leases where name = $1',
      [lease],
    )
    return row?.state
  }

  /** Ends the holder behind the wrapper's back, as a taker does with one that has expired. */
  async steal(lease: string): Promise<void> {
    await this.database.query('select fencepost.end_holder(holder_id) from fencepost.lease where name = $1', [
      lease,
    ])
  }

  /** The wrapper has joined as a holder, so it is asking for the lease. */
  async isWaiting(cli: Cli): Promise<void> {
    await eventually(async () => {
      const holders = await this.database.query('select from fencepost.holder where pid = $1', [cli.pid])
      return holders.length > 0
    })
  }
}

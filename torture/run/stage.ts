import { createWriteStream } from 'node:fs'
import { chmod, cp, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { Fencepost } from '../../src/index.ts'
import { quickLease, rowsOf } from '../client/settings.ts'
import { applyControl } from '../controls/apply-control.ts'
import { controlVariable, registerPath } from '../controls/controls.ts'
import { LogReader } from '../decode/log-reader.ts'
import { createTortureTables } from '../decode/tables.ts'
import { startPooler } from '../faults/pooler.ts'
import type { HistoryEvent } from '../history.ts'
import { Crew } from './crew.ts'
import { HistoryFolder } from './history-folder.ts'
import { Judge } from './judge.ts'
import type { TortureOptions } from './options.ts'
import { OwnServer } from './own-server.ts'

/** Everything that a run needs, and that is cleared away after it. */
export class Stage implements AsyncDisposable {
  readonly server: OwnServer
  readonly crew: Crew
  readonly folder: HistoryFolder
  readonly judge: Judge
  readonly #directory: string
  readonly #stack: AsyncDisposableStack

  private constructor(
    directory: string,
    stack: AsyncDisposableStack,
    parts: Pick<Stage, 'server' | 'crew' | 'folder' | 'judge'>,
  ) {
    this.#directory = directory
    this.#stack = stack
    this.server = parts.server
    this.crew = parts.crew
    this.folder = parts.folder
    this.judge = parts.judge
  }

  /** A server with the schema, weakened where that is asked for, and clients that have begun. */
  static async set(options: TortureOptions): Promise<Stage> {
    await using stack = new AsyncDisposableStack()
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-torture-'))
    stack.defer(() => rm(directory, { recursive: true, force: true }))
    // The server may run as somebody else, who has to get to its folder.
    await chmod(directory, 0o711)
    const histories = historiesIn(directory)
    await mkdir(histories)

    const { control, clients: count, seed, ttlMs } = options
    const server = await OwnServer.start(join(directory, 'server'), control?.provocation.settings)
    stack.defer(() => server.stop('immediate'))
    const leases = Array.from({ length: options.leases }, (_, number) => `lease-${number + 1}`)
    const log = await prepare(server, leases, control?.name)
    const folder = new HistoryFolder(histories)
    const pooler = options.pooler === 'none' ? undefined : await startPooler(server.url)
    if (pooler !== undefined) stack.defer(() => pooler.stop())
    const crew = await Crew.start({
      ...{ count, seed, leases, ttlMs, folder, logs: histories },
      urlOf: (place) =>
        pooler !== undefined && (options.pooler === 'all' || place % 2 === 1) ? pooler.url : server.url,
      execArgv: control === undefined ? [] : ['--import', registerPath],
      env: control === undefined ? {} : { [controlVariable]: control.name },
    })
    stack.defer(() => crew.close())
    const isNeverDurable = control?.provocation.settings?.['synchronous_commit'] === 'off'
    const judge = new Judge(server, folder, log, isNeverDurable)
    return new Stage(directory, stack.move(), { server, crew, folder, judge })
  }

  /** Copies what everybody has written down, and puts it all together: with what was committed, as it was judged. */
  async keep(directory = `${this.#directory}-kept`): Promise<string> {
    await cp(historiesIn(this.#directory), directory, { recursive: true })
    const events = createWriteStream(join(directory, 'history.jsonl'))
    await pipeline(lines(this.judge.events), events)
    return directory
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync()
  }
}

function* lines(events: readonly HistoryEvent[]): Generator<string> {
  for (const event of events) yield `${JSON.stringify(event)}\n`
}

function historiesIn(directory: string): string {
  return join(directory, 'history')
}

async function prepare(
  server: OwnServer,
  leases: readonly string[],
  control: string | undefined,
): Promise<LogReader> {
  await Fencepost.migrate({ connectionString: server.url })
  const client = await server.session()
  try {
    await createTortureTables(client)
    if (control !== undefined) await applyControl(client, control)
    const log = await LogReader.create(client)
    const rows = [...leases, quickLease].flatMap((lease) => rowsOf(lease).map((row) => ({ lease, row })))
    await client.query(
      'insert into torture.row (row, lease) select row, lease from jsonb_to_recordset($1) as r (row text, lease text)',
      [JSON.stringify(rows)],
    )
    return log
  } finally {
    await client.end()
  }
}

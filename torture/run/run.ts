import { chmod, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Fencepost } from '../../src/index.ts'
import { rowsOf } from '../client/settings.ts'
import { clientFaults } from '../faults/kinds.ts'
import { Crew } from './crew.ts'
import { HistoryFolder } from './history-folder.ts'
import { Nemesis } from './nemesis.ts'
import type { TortureOptions } from './options.ts'
import { OwnServer } from './own-server.ts'
import { planInTurn, planOverlapping } from './plan.ts'

export async function run(options: TortureOptions): Promise<void> {
  const { seed, seconds } = options
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-torture-'))
  // The server may run as somebody else, who has to get to its folder.
  await chmod(directory, 0o711)
  const histories = join(directory, 'history')
  await mkdir(histories)
  const server = await OwnServer.start(join(directory, 'server'))
  await Fencepost.migrate({ connectionString: server.url })
  const leases = Array.from({ length: options.leases }, (_, number) => `lease-${number + 1}`)
  const client = await server.session()
  await client.query(`create schema torture;
  create table torture.write (id bigint generated always as identity primary key, lease text not null, token bigint not null, row text not null, client text not null, op integer not null);
  create table torture.row (row text primary key, lease text, stamp bigint)`)
  await client.query('insert into torture.row (row) select unnest($1::text[])', [leases.flatMap(rowsOf)])
  await client.end()
  const folder = new HistoryFolder(histories)
  const crew = await Crew.start({
    count: options.clients,
    seed,
    leases,
    ttlMs: options.ttlMs,
    folder,
    logs: directory,
    urlOf: () => server.url,
    execArgv: [],
    env: {},
  })
  const overlapping = options.faults.filter((kind) => clientFaults.includes(kind))
  const inTurn = options.faults.filter((kind) => !clientFaults.includes(kind))
  const nemesis = new Nemesis({
    seed,
    clients: crew.clients,
    server,
    overlapping: planOverlapping(seed, overlapping, seconds * 1000),
    inTurn: planInTurn(seed, inTurn, seconds * 1000),
    record: (event) => folder.record(event),
  })
  await sleep(seconds * 1000)
  await nemesis.end()
  await crew.stop(20_000)
  console.log(crew.casualties, nemesis.missed)
  const events = await folder.readOn()
  const counts: Record<string, number> = {}
  for (const e of events) {
    const k = e.kind === 'asked' ? `asked ${e.what}` : e.kind === 'answered' ? `answered ${e.outcome} ${e.code ?? ''}` : e.kind === 'fault' ? `fault ${e.fault} ${e.phase}` : e.kind
    counts[k] = (counts[k] ?? 0) + 1
  }
  console.log(counts)
  await server.stop('fast')
  if (options.keep === undefined) await rm(directory, { recursive: true, force: true })
  else console.log(directory)
}

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { EmbeddedServer } from '../../src/database/embedded-server.ts'
import { tokenSetting } from '../../src/doctor/records.ts'
import { Fencepost } from '../../src/index.ts'
import { eventually } from '../support/cli.ts'
import { DebianServer, debianBinaries } from '../support/debian-server.ts'
import { type Case, applyFix, examineAt, cure, findingOf, run, troubles } from './patient.ts'
import { startEmbedded } from '../support/embedded.ts'

/** A server of this file's own, because what is broken here is broken for all its databases. */
let server: EmbeddedServer
let directory: string
let url: string
let version: number

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'fencepost-doctor-'))
  // Off the command line, where ALTER SYSTEM could not mend it.
  server = await startEmbedded({ directory, settings: { wal_level: 'logical' } })
  url = await newDatabase('doctor')
  const client = new Client({ connectionString: url })
  await client.connect()
  version = Number((await client.query('show server_version_num')).rows[0].server_version_num)
  await client.end()
  await run(url, [
    `create role app login password 'geheim'`,
    'create schema ledger',
    'create table accounts (id integer primary key)',
    `select fencepost.protect('accounts', 'settlement')`,
    `select fencepost.protect_schema('ledger', 'deploy')`,
  ])
})
afterAll(async () => {
  await server.stop('fast')
  await rm(directory, { recursive: true, force: true })
})

async function newDatabase(name: string): Promise<string> {
  await run(server.url, [`create database ${name}`])
  const target = new URL(server.url)
  target.pathname = `/${name}`
  await Fencepost.migrate({ connectionString: target.href })
  return target.href
}

const reload = 'select pg_reload_conf()'
const cases: Record<string, Case> = {
  'a server whose sessions write past triggers': {
    code: 'replication-role',
    severity: 'error',
    object: 'setting session_replication_role',
    breaks: ['alter system set session_replication_role = replica', reload],
  },
  'a database whose sessions write past triggers': {
    code: 'replication-role',
    severity: 'error',
    object: 'database doctor',
    breaks: ['alter database doctor set session_replication_role = replica'],
  },
  'a role whose sessions write past triggers': {
    code: 'replication-role',
    severity: 'error',
    object: 'role app in database doctor',
    breaks: ['alter role app in database doctor set session_replication_role = replica'],
  },
  'a function that writes past triggers': {
    code: 'replication-role',
    severity: 'error',
    object: 'public.past()',
    breaks: [
      `create function past() returns void language sql set session_replication_role = replica as 'select'`,
    ],
    tidies: ['drop function past()'],
  },
  'a fence for every session of a role': {
    code: 'fence-stored',
    severity: 'error',
    object: 'role app',
    breaks: [`alter role app set fencepost.fence = '1:x:settlement'`],
  },
  'a fence for every session of the database': {
    code: 'fence-stored',
    severity: 'error',
    object: 'database doctor',
    breaks: [`alter database doctor set fencepost.fence = '1:x:settlement'`],
  },
  'a fence for every session of the server': {
    code: 'fence-stored',
    severity: 'error',
    object: 'all roles',
    breaks: [`alter role all set fencepost.fence = '1:x:settlement'`],
  },
  'a fence in a function': {
    code: 'fence-stored',
    severity: 'error',
    object: 'public.fenced()',
    breaks: [
      `create function fenced() returns void language sql set fencepost.fence = '1:x:settlement' as 'select'`,
    ],
    tidies: ['drop function fenced()'],
  },
  'a server that answers before it has written': {
    code: 'synchronous-commit-off',
    severity: 'warning',
    object: 'setting synchronous_commit',
    breaks: ['alter system set synchronous_commit = off', reload],
  },
  'a role that is answered before its writes are safe': {
    code: 'synchronous-commit-off',
    severity: 'warning',
    object: 'role app',
    breaks: ['alter role app set synchronous_commit = off'],
  },
  'a server that does not wait for its disk': {
    code: 'fsync-off',
    severity: 'warning',
    object: 'setting fsync',
    breaks: ['alter system set fsync = off', reload],
  },
  'a server that writes pages in part': {
    code: 'full-page-writes-off',
    severity: 'warning',
    object: 'setting full_page_writes',
    breaks: ['alter system set full_page_writes = off', reload],
  },
  'another superuser': {
    code: 'superuser',
    severity: 'note',
    object: 'role deputy',
    breaks: ['create role deputy superuser'],
    tidies: ['drop role deputy'],
  },
  'a role that can become one': {
    code: 'superuser',
    severity: 'note',
    object: 'role app',
    breaks: ['grant pg_execute_server_program to app'],
  },
  'a role that reads what is replicated': {
    code: 'superuser',
    severity: 'note',
    object: 'role app',
    breaks: ['alter role app replication'],
  },
}

test.each(Object.entries(cases))('%s is found, and the fix mends it', async (_name, one) => {
  expect(await cure(url, one)).toEqual([])
})

test('a role that may write past triggers is found, where there is such a right', async ({ skip }) => {
  skip(version < 150_000, 'this PostgreSQL has no rights on settings')
  const left = await cure(url, {
    code: 'replication-role-grant',
    severity: 'warning',
    object: 'role app',
    breaks: ['grant set on parameter session_replication_role to app'],
  })
  expect(left).toEqual([])
})

test('a role that may write every table is found, where there is such a right', async ({ skip }) => {
  skip(version < 140_000, 'this PostgreSQL has no right to write everything')
  const left = await cure(url, {
    code: 'table-writable',
    severity: 'warning',
    object: 'role app',
    breaks: ['grant pg_write_all_data to app'],
  })
  expect(left).toEqual([])
})

test('a server that fires no event triggers is found, where it can be told so', async ({ skip }) => {
  skip(version < 170_000, 'event triggers can be turned off from PostgreSQL 17 on')
  const left = await cure(url, {
    code: 'event-triggers-off',
    severity: 'error',
    object: 'setting event_triggers',
    breaks: ['alter system set event_triggers = off', reload],
  })
  expect(left).toEqual([])
})

test('a server on its own, with its usual settings, gives nothing at all to find', async () => {
  expect((await examineAt(url)).findings).toEqual([])
})

test('a subscription does write past the triggers, and is found; disabled, it is a warning', async () => {
  const publisher = await newDatabase('publisher')
  await run(publisher, [
    'create table accounts (id integer primary key, fence_token bigint not null default 0)',
    'create publication changes for table accounts',
    `select pg_create_logical_replication_slot('changes', 'pgoutput')`,
  ])
  await run(url, [
    `create subscription changes connection '${publisher}' publication changes with (create_slot = false, copy_data = false)`,
  ])
  await run(publisher, ['insert into accounts values (7)'])
  const client = new Client({ connectionString: url })
  await client.connect()
  await eventually(async () => (await client.query('select from accounts where id = 7')).rowCount === 1)
  await expect(client.query('insert into accounts values (8)')).rejects.toMatchObject({ code: 'FP005' })
  await client.end()
  const report = await examineAt(url)
  // A subscriber is no standby that a failover could lead to.
  expect(troubles(report)).toEqual(['subscription subscription changes'])
  expect(findingOf(report, 'subscription')).toMatchObject({ severity: 'error' })
  await applyFix(url, findingOf(report, 'subscription')!)
  const disabled = findingOf(await examineAt(url), 'subscription')
  expect(disabled).toMatchObject({ severity: 'warning', fixKind: 'advice' })
  await run(url, ['drop subscription changes'])
  expect(troubles(await examineAt(url))).toEqual([])
})

describe('what a role with few rights sees', () => {
  const asApp = (): string => {
    const target = new URL(url)
    target.username = 'app'
    target.password = 'geheim'
    return target.href
  }

  test('with no right at all it says what it could not look at, and finds the rest', async () => {
    await run(url, ['alter table accounts disable trigger user'])
    const report = await examineAt(asApp())
    expect(troubles(report)).toEqual(['trigger-disabled public.accounts'])
    const missed = report.findings.filter((one) => one.code === 'not-checked')
    expect(missed.map((one) => one.object)).toEqual([
      'the protected tables',
      'the triggers of public.accounts',
      'the tokens given out',
      'the protected schemas',
      'leases and their sequences',
      'the tokens of leases',
      'the tokens of leases',
      'the holders of leases',
      'the holders',
      'the times of leases and holders',
    ])
    for (const { what, severity } of missed) {
      expect(severity).toBe('note')
      expect(what).toMatch(/^The doctor could not look at .*: it needs .*\.$/)
    }
    expect(report.findings).toHaveLength(missed.length + 1)
    await run(url, [
      'drop trigger fencepost_guard on accounts',
      `create trigger fencepost_guard before insert or update or truncate on accounts for each statement
         execute function fencepost.guard('settlement', 'lease', 'settlement', '${tokenSetting('settlement')}')`,
    ])
    expect(troubles(await examineAt(asApp()))).toEqual(['trigger-altered public.accounts'])
    await run(url, [`select fencepost.protect('accounts', 'settlement')`])
    await run(url, ['alter role app set synchronous_commit = off'])
    expect(troubles(await examineAt(asApp()))).toEqual(['synchronous-commit-off role app'])
    await run(url, ['alter role app reset synchronous_commit'])
  })

  test('with the rights of an application it sees the triggers', async () => {
    await Fencepost.migrate({ connectionString: url, grantTo: ['app'] })
    expect(troubles(await examineAt(asApp()))).toEqual([])
    await run(url, ['alter table accounts disable trigger user', 'drop event trigger fencepost_sql_drop'])
    const report = await examineAt(asApp())
    expect(troubles(report)).toEqual([
      'trigger-disabled public.accounts',
      'event-trigger-missing event trigger fencepost_sql_drop',
    ])
    await applyFix(url, findingOf(report, 'trigger-disabled')!)
    await applyFix(url, findingOf(report, 'event-trigger-missing')!)
    expect(troubles(await examineAt(asApp()))).toEqual([])
  })

  test('sessions that are read-only are enough', async () => {
    await run(url, ['alter role app set default_transaction_read_only = on'])
    expect(troubles(await examineAt(asApp()))).toEqual([])
    await run(url, ['alter role app reset default_transaction_read_only'])
  })
})

// The embedded server has no pg_basebackup.
const binaries = debianBinaries()
const why = binaries === undefined ? ' (skipped: pg_basebackup is not installed; Debian: postgresql)' : ''

describe.skipIf(binaries === undefined).each([why])('a server with a standby%s', () => {
  test('an asynchronous one is found, and the fix makes it synchronous; the standby itself grants nothing', async () => {
    await using primary = await DebianServer.start(binaries!)
    await Fencepost.migrate({ connectionString: primary.url })
    const standby = await primary.addStandby('spare')
    const report = await examineAt(primary.url)
    expect(troubles(report)).toEqual(['standby-async standby spare'])
    await applyFix(primary.url, findingOf(report, 'standby-async')!)
    await eventually(async () => troubles(await examineAt(primary.url)).length === 0)

    await run(primary.url, [
      'alter system set synchronous_commit = local',
      reload,
      'create table marks (id integer)',
    ])
    await eventually(
      async () => findingOf(await examineAt(primary.url), 'synchronous-commit-off') !== undefined,
    )
    await applyFix(primary.url, findingOf(await examineAt(primary.url), 'synchronous-commit-off')!)

    await eventually(async () => troubles(await examineAt(standby)).length === 1)
    expect(troubles(await examineAt(standby))).toEqual(['server-in-recovery the server'])
  })
})

import { Client, type ClientConfig } from 'pg'
import type { TextRow } from '../database/connection.ts'
import { RequestFailure, describeFailure, isConnectionState, sqlStateOf } from '../database/failure.ts'
import { FencepostError } from '../errors.ts'
import { checkBypasses } from './bypass.ts'
import { checkClock } from './clock.ts'
import { checkColumns, checkStamps } from './columns.ts'
import { Examination, type Facts, type Limits, advice, usualLimits } from './examination.ts'
import { type DoctorReport, sortFindings } from './finding.ts'
import { checkLeases } from './leases.ts'
import { checkParents } from './parents.ts'
import { checkPooler, patienceMs } from './pooler.ts'
import { checkProtectedSchemas } from './protected-schemas.ts'
import { type Records, readRecorded } from './records.ts'
import { checkReplication } from './replication.ts'
import { checkSchema } from './schema.ts'
import { checkSessions } from './sessions.ts'
import { checkSettings } from './settings.ts'
import { checkSurroundings } from './surroundings.ts'
import { checkWall } from './wall.ts'

/**
 * Looks for everything that breaks the wall or a promise, and changes nothing. With few rights it sees less, and says what it
 * did not see.
 *
 * @throws DatabaseError when the database cannot be reached.
 */
export async function examine(config: ClientConfig, limits: Partial<Limits> = {}): Promise<DoctorReport> {
  const connect = (more: ClientConfig = {}): Client => {
    const client = new Client({
      application_name: 'fencepost doctor',
      connectionTimeoutMillis: 10_000,
      query_timeout: 15_000,
      ...config,
      ...more,
      // Values stay text, so that neither a global parser nor the size of a number matters.
      types: { getTypeParser: () => (value: string) => value },
    })
    // Without a listener a lost connection would end the process; the query in progress rejects as well.
    client.on('error', () => {})
    return client
  }
  const client = connect()
  try {
    await client.connect()
    const exam = new Examination(client, await readFacts(client), { ...usualLimits, ...limits })
    if (await allowsTransactions(exam, client)) {
      await runChecks(exam)
      // In session mode this session would keep one of the pooler's few.
      await client.end()
      await exam.check('what a pooler hands on', (one) =>
        checkPooler(one, () => connect({ query_timeout: patienceMs }), config),
      )
    }
    return { findings: sortFindings(exam.findings), checked: exam.checked }
  } catch (error) {
    if (error instanceof FencepostError) throw error
    const sqlState = sqlStateOf(error)
    const answered = sqlState !== undefined && !isConnectionState(sqlState)
    throw describeFailure(new RequestFailure(answered ? 'refused' : 'unsent', error), 'examine the database')
  } finally {
    await client.end().catch(() => {})
  }
}

async function runChecks(exam: Examination): Promise<void> {
  let records: Records = { tables: [], isKnown: false }
  await exam.check('the schema (version, functions, tables, owners, rights)', checkSchema)
  await exam.check('protected tables and their parents', async () => {
    const { tables, isKnown } = await readRecorded(exam)
    records = { tables: await checkParents(exam, tables), isKnown }
  })
  await exam.check('triggers of protected tables and their partitions', () => checkWall(exam, records.tables))
  await exam.check('rules of protected tables, and protections that are not recorded', () =>
    checkSurroundings(exam, records),
  )
  await exam.check('fence columns', () => checkColumns(exam, records.tables))
  await exam.check('stamps against the tokens given out', () => checkStamps(exam, records.tables))
  await exam.check('event triggers of protected schemas', checkProtectedSchemas)
  await exam.check('roles and subscriptions that get past the wall', () =>
    checkBypasses(exam, records.tables),
  )
  await exam.check('settings of the server, the database, its roles and functions', checkSettings)
  await exam.check('leases, holders and token sequences', checkLeases)
  await exam.check('standbys', checkReplication)
  await exam.check('open and prepared transactions', checkSessions)
  await exam.check('clocks', checkClock)
}

async function readFacts(client: Client): Promise<Facts> {
  const { rows } = await client.query<TextRow>(
    `select pg_catalog.current_setting('server_version_num') as version, pg_catalog.version() as version_text,
            pg_catalog.current_database()::text as database,
            pg_catalog.pg_is_in_recovery()::text as is_in_recovery,
            exists (select from pg_catalog.pg_namespace n where n.nspname = 'fencepost')::text as has_schema,
            (select p.prosrc from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
              where n.nspname = 'fencepost' and p.proname = 'schema_version' limit 1) as schema_source,
            (select pg_catalog.string_agg(c.relname, ' ')
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
              where n.nspname = 'fencepost' and c.relkind in ('r', 'p', 'v', 'm', 'f')) as relations`,
  )
  const row = rows[0] ?? {}
  return {
    version: Number(row['version']),
    versionText: row['version_text'] ?? '',
    database: row['database'] ?? '',
    isInRecovery: row['is_in_recovery'] === 'true',
    hasSchema: row['has_schema'] === 'true',
    schemaSource: row['schema_source'] ?? undefined,
    relations: new Set((row['relations'] ?? '').split(' ').filter((name) => name !== '')),
  }
}

/** A pooler in statement mode refuses them, and nothing can be fenced through it, nor looked at in peace. */
async function allowsTransactions(exam: Examination, client: Client): Promise<boolean> {
  try {
    await client.query('begin')
    await client.query('commit')
    return true
  } catch (error) {
    // PgBouncer, which ends the session of whoever tries, and others.
    const { code } = error as { code?: unknown }
    if (code !== '08P01' && code !== '25001') throw error
    exam.found(
      'pooler-refuses-transactions',
      'error',
      'the pooler',
      `The pooler refuses transactions (${(error as Error).message}), so nothing can be fenced through it, and the doctor could not look further.`,
      advice('In pgbouncer.ini: pool_mode = transaction, or session.'),
    )
    return false
  }
}

import type { TextRow } from '../database/connection.ts'
import { type Examination, type Fix, advice, sql } from './examination.ts'
import type { FindingCode, Severity } from './finding.ts'

/** A setting that matters, and what is wrong with a value of it. */
interface Rule {
  readonly setting: string
  readonly isWrong: (value: string) => boolean
  readonly right: string
  readonly code: FindingCode
  readonly severity: Severity
  readonly effect: string
  /** Whether a database or role may have its own value. */
  readonly isStorable: boolean
}

const isOff = (value: string): boolean => ['off', 'false', 'no', '0', 'of'].includes(value.toLowerCase())

const rules: readonly Rule[] = [
  {
    setting: 'session_replication_role',
    isWrong: (value) => value === 'replica',
    right: 'origin',
    code: 'replication-role',
    severity: 'error',
    effect: 'triggers do not fire, so protected tables are written without a check',
    isStorable: true,
  },
  {
    setting: 'event_triggers',
    isWrong: isOff,
    right: 'on',
    code: 'event-triggers-off',
    severity: 'error',
    effect: 'protected schemas are changed without a check',
    isStorable: true,
  },
  {
    setting: 'synchronous_commit',
    isWrong: isOff,
    right: 'on',
    code: 'synchronous-commit-off',
    severity: 'warning',
    effect:
      'a crash loses fenced writes that were answered (grants and heartbeats wait for the disk all the same)',
    isStorable: true,
  },
  {
    setting: 'fsync',
    isWrong: isOff,
    right: 'on',
    code: 'fsync-off',
    severity: 'warning',
    effect: 'a crash of the machine can bring old tokens back, or damage the data',
    isStorable: false,
  },
  {
    setting: 'full_page_writes',
    isWrong: isOff,
    right: 'on',
    code: 'full-page-writes-off',
    severity: 'warning',
    effect: 'a crash of the machine can damage the data',
    isStorable: false,
  },
]

/** Settings of the server, and those stored for this database and its roles, that break a promise. */
export async function checkSettings(exam: Examination): Promise<void> {
  await checkServer(exam)
  await checkStored(exam)
  await checkFunctions(exam)
}

async function checkServer(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'the settings of the server', needs: 'the right to read the catalogs' },
    `select name, setting, source from pg_settings where name = any ($1::text[])
     union all
     select 'synchronous_standby_names', current_setting('synchronous_standby_names'), ''`,
    [rules.map((rule) => rule.setting)],
  )
  const standbys = rows?.find((row) => row['name'] === 'synchronous_standby_names')?.['setting'] ?? ''
  for (const row of rows ?? []) {
    const rule = rules.find((one) => one.setting === row['name'])
    const { setting: value = '', source = '' } = row
    const isLocal = rule?.setting === 'synchronous_commit' && value === 'local' && standbys !== ''
    if (rule === undefined || !(rule.isWrong(value ?? '') || isLocal)) continue
    // Those stored for a database or role come from another list; what a session was given or has set is its own.
    if (
      !['default', 'configuration file', 'command line', 'environment variable', 'global'].includes(source!)
    ) {
      if (source === 'session') reportLeaked(exam, rule, value!)
      continue
    }
    exam.found(
      rule.code,
      rule.severity,
      `setting ${rule.setting}`,
      `The server has ${rule.setting} = ${value!}: ${isLocal ? 'a failover loses fenced writes that were answered' : rule.effect}.`,
      source === 'command line'
        ? advice(
            `Start the server without ${rule.setting} on its command line, or with: -c ${rule.setting}=${rule.right}`,
          )
        : sql(`alter system set ${rule.setting} = ${rule.right};\nselect pg_reload_conf();`),
    )
  }
}

/** Nobody has set anything in this session yet, so another client of the pooler has. */
function reportLeaked(exam: Examination, rule: Rule, value: string): void {
  exam.found(
    rule.code,
    rule.severity,
    'the pooler',
    `A new session has ${rule.setting} = ${value}, which another client of the pooler has left there: ${rule.effect}.`,
    advice('Let the pooler reset sessions, and end those it has; see pooler-leaks-set.'),
  )
}

interface Stored {
  readonly place: string
  readonly reset: string
  readonly name: string
  readonly value: string
}

async function checkStored(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'settings stored for databases and roles', needs: 'the right to read the catalogs' },
    `select case when s.setrole = 0 and s.setdatabase = 0 then 'all roles'
                 when s.setrole = 0 then format('database %s', d.datname)
                 when s.setdatabase = 0 then format('role %s', r.rolname)
                 else format('role %s in database %s', r.rolname, d.datname) end as place,
            case when s.setrole = 0 and s.setdatabase = 0 then 'alter role all reset '
                 when s.setrole = 0 then format('alter database %I reset ', d.datname)
                 when s.setdatabase = 0 then format('alter role %I reset ', r.rolname)
                 else format('alter role %I in database %I reset ', r.rolname, d.datname) end as reset,
            split_part(c.setting, '=', 1) as name, substr(c.setting, strpos(c.setting, '=') + 1) as value
       from pg_db_role_setting s
       left join pg_database d on d.oid = s.setdatabase
       left join pg_roles r on r.oid = s.setrole
      cross join lateral unnest(s.setconfig) c (setting)
      where s.setdatabase = 0 or d.datname = current_database()
      order by 1, 3`,
  )
  for (const row of rows ?? []) reportStored(exam, readStored(row))
}

function readStored(row: TextRow): Stored {
  return { place: row['place']!, reset: row['reset']!, name: row['name']!, value: row['value']! }
}

function reportStored(exam: Examination, { place, reset, name, value }: Stored): void {
  const fix: Fix = sql(`${reset}${name.includes('.') ? name : name.toLowerCase()};`)
  if (/^fencepost\./i.test(name)) {
    exam.found(
      'fence-stored',
      'error',
      place,
      `The setting ${name} is stored for ${place}: every session of it carries a fence that it was not given.`,
      fix,
    )
    return
  }
  const rule = rules.find((one) => one.isStorable && one.setting === name.toLowerCase())
  if (rule === undefined || !rule.isWrong(value)) return
  exam.found(
    rule.code,
    rule.severity,
    place,
    `${rule.setting} = ${value} is stored for ${place}: ${rule.effect}.`,
    fix,
  )
}

/** A function may carry settings of its own, which hold while it runs. */
async function checkFunctions(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'the settings of functions', needs: 'the right to read the catalogs' },
    `select format('%I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)) as signature, p.prokind::text as kind,
            split_part(c.setting, '=', 1) as name, substr(c.setting, strpos(c.setting, '=') + 1) as value
       from pg_proc p join pg_namespace n on n.oid = p.pronamespace
      cross join lateral unnest(p.proconfig) c (setting)
      where n.nspname <> 'fencepost'
        and (lower(c.setting) = 'session_replication_role=replica' or lower(c.setting) like 'fencepost.%'
             or lower(c.setting) like 'event\\_triggers=%')
      order by 1, 3`,
  )
  for (const row of rows ?? []) {
    const name = row['name']!
    const isFence = /^fencepost\./i.test(name)
    const rule = rules.find((one) => one.setting === name.toLowerCase())
    if (!isFence && rule?.isWrong(row['value']!) !== true) continue
    const kind = row['kind'] === 'p' ? 'procedure' : 'function'
    exam.found(
      isFence ? 'fence-stored' : rule!.code,
      'error',
      row['signature']!,
      `The ${kind} ${row['signature']!} runs with ${name} = ${isFence ? 'a fence of its own' : row['value']!}, and so writes past the wall.`,
      sql(`alter ${kind} ${row['signature']!} reset ${name};`),
    )
  }
}

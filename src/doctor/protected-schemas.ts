import { type Examination, command, sql } from './examination.ts'

const events = ['ddl_command_start', 'ddl_command_end', 'sql_drop', 'table_rewrite']

/** The event triggers that guard protected schemas. */
export async function checkProtectedSchemas(exam: Examination): Promise<void> {
  if (!exam.facts.relations.has('schema_protections')) return
  const schemas = await exam.look(
    { what: 'the protected schemas', needs: 'SELECT on fencepost.schema_protections' },
    `select s.schema as name, s.guard, (n.oid is not null)::text as is_there
       from fencepost.schema_protections s left join pg_namespace n on n.nspname = s.schema order by 1`,
  )
  for (const row of schemas ?? []) {
    if (row['is_there'] === 'true') continue
    exam.found(
      'protected-schema-missing',
      'warning',
      `schema ${row['name']!}`,
      `The schema ${row['name']!}, guarded by "${row['guard']!}", no longer exists: if it was renamed, protect it by its new name.`,
      command('fencepost', 'unprotect', '--ddl', row['name']!),
    )
  }
  const standing = (schemas ?? []).filter((row) => row['is_there'] === 'true')
  const [first] = standing
  if (first === undefined) return
  const again = command('fencepost', 'protect', '--ddl', first['name']!, '--lease', first['guard']!)
  const whose = standing.length === 1 ? `schema ${first['name']!}` : `${standing.length} schemas`
  const triggers = await exam.look(
    { what: 'the event triggers', needs: 'the right to read the catalogs' },
    `select e.evtname as name, (e.evtenabled in ('O', 'A'))::text as is_enabled,
            (e.evtname = 'fencepost_' || e.evtevent and e.evttags is null and n.nspname = 'fencepost'
             and p.proname = 'guard_ddl')::text as is_as_made
       from pg_event_trigger e join pg_proc p on p.oid = e.evtfoid join pg_namespace n on n.oid = p.pronamespace
      where e.evtname = any ($1::text[])`,
    [events.map((event) => `fencepost_${event}`)],
  )
  for (const event of triggers === undefined ? [] : events) {
    const name = `fencepost_${event}`
    const row = triggers?.find((one) => one['name'] === name)
    if (row === undefined) {
      exam.found(
        'event-trigger-missing',
        'error',
        `event trigger ${name}`,
        `The event trigger ${name}, which guards ${whose}, is gone.`,
        again,
      )
    } else if (row['is_as_made'] !== 'true') {
      exam.found(
        'event-trigger-altered',
        'error',
        `event trigger ${name}`,
        `The event trigger ${name}, which guards ${whose}, is not the one that protect makes: it fires for less, or calls something else.`,
        sql(
          `drop event trigger ${name};\ncreate event trigger ${name} on ${event} execute function fencepost.guard_ddl();`,
        ),
      )
    } else if (row['is_enabled'] !== 'true') {
      exam.found(
        'event-trigger-disabled',
        'error',
        `event trigger ${name}`,
        `The event trigger ${name}, which guards ${whose}, is disabled.`,
        again,
      )
    }
  }
}

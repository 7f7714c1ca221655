import type { TestDatabase } from './database.ts'

/** All that the schema consists of. */
export async function schemaOf(of: TestDatabase): Promise<Record<string, string>> {
  const rows = await of.query<{ what: string; source: string }>(
    `select 'function ' || p.oid::regprocedure as what, pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '') as source
       from pg_proc p where p.pronamespace = 'fencepost'::regnamespace
     union all
     select 'relation ' || c.relname,
            concat_ws(' ', c.relkind, c.reloptions, case c.relkind when 'v' then pg_get_viewdef(c.oid) end,
              (select string_agg(concat_ws(' ', a.attname, a.atttypid::regtype, a.attnotnull,
                                           (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d
                                             where d.adrelid = a.attrelid and d.adnum = a.attnum)), ', ' order by a.attnum)
                 from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
              (select string_agg(k.conname || ' ' || pg_get_constraintdef(k.oid), ', ' order by k.conname)
                 from pg_constraint k where k.conrelid = c.oid))
       from pg_class c
      where c.relnamespace = 'fencepost'::regnamespace and c.relname !~ '^migration' and c.relkind in ('r', 'v', 'S')
     union all
     select 'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass, pg_get_triggerdef(t.oid)
       from pg_trigger t join pg_class c on c.oid = t.tgrelid
      where c.relnamespace = 'fencepost'::regnamespace and not t.tgisinternal`,
  )
  return Object.fromEntries(rows.map((row) => [row.what, row.source]))
}

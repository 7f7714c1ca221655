import { escapeIdentifier } from 'pg'
import { type Examination, advice, enumerate, sql } from './examination.ts'
import type { Recorded } from './records.ts'

/** The table and what inherits from it, for each of `$1`. */
const tree = `with recursive tree as (
       select unnest($1::oid[]) as oid
       union
       select i.inhrelid from pg_inherits i join tree t on t.oid = i.inhparent)`

/** Who can get past the wall, and what does: roles, and logical replication. */
export async function checkBypasses(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  const oids = recorded.filter((one) => one.table !== undefined).map((one) => one.oid)
  await checkSuperusers(exam)
  await checkReplicationRole(exam)
  await checkOwners(exam, oids)
  await checkTriggerGrants(exam, oids)
  await checkSubscriptions(exam, oids)
}

async function checkSuperusers(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'the roles', needs: 'the right to read the catalogs' },
    // 10 is the role that made the cluster.
    `select r.rolname as role, 'is a superuser' as why, format('alter role %I nosuperuser;', r.rolname) as fix
       from pg_roles r where r.rolsuper and r.oid <> 10
     union all
     select pg_get_userbyid(m.member), 'can become a superuser as a member of ' || r.rolname,
            format('revoke %I from %I;', r.rolname, pg_get_userbyid(m.member))
       from pg_auth_members m join pg_roles r on r.oid = m.roleid
      where r.rolname in ('pg_execute_server_program', 'pg_write_server_files', 'pg_read_server_files')
     union all
     select r.rolname, 'may read what is replicated, and with it the ids of holders',
            format('alter role %I noreplication;', r.rolname)
       from pg_roles r where r.rolreplication and not r.rolsuper
      order by 1, 2`,
  )
  for (const row of rows ?? []) {
    exam.found(
      'superuser',
      'note',
      `role ${row['role']!}`,
      `Role ${row['role']!} ${row['why']!}: no wall holds it, so no program should log in as it that does not have to.`,
      sql(row['fix']!),
    )
  }
}

async function checkReplicationRole(exam: Examination): Promise<void> {
  if (exam.facts.version < 150_000) return
  const rows = await exam.look(
    { what: 'rights on session_replication_role', needs: 'the right to read the catalogs' },
    `select case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end as role,
            p.parname as parameter, lower(a.privilege_type) as privilege
       from pg_parameter_acl p, aclexplode(p.paracl) a
      where p.parname in ('session_replication_role', 'event_triggers')
        and a.grantee not in (select r.oid from pg_roles r where r.rolsuper)
      order by 1, 2, 3`,
  )
  for (const row of rows ?? []) {
    const { role, parameter, privilege } = row
    exam.found(
      'replication-role-grant',
      'warning',
      role === 'public' ? 'public' : `role ${role!}`,
      `${role === 'public' ? 'Everybody' : `Role ${role!}`} may set ${parameter!}, and so write past every trigger.`,
      sql(`revoke ${privilege!} on parameter ${parameter!} from ${role!};`),
    )
  }
}

/** Rails' fixtures, pg_restore --disable-triggers and the like do it without anybody having thought of it. */
async function checkOwners(exam: Examination, oids: readonly string[]): Promise<void> {
  const rows = await exam.look(
    { what: 'the owners of protected tables', needs: 'the right to read the catalogs' },
    `${tree}
     select r.rolname as role, o.rolname as owner, count(distinct c.oid)::text as tables,
            array_to_json(array_agg(distinct format('%I.%I', n.nspname, c.relname)))::text as names,
            (select count(*) from pg_stat_activity s
              where s.usesysid = r.oid and s.datname = current_database() and s.pid <> pg_backend_pid())::text as sessions
       from tree t
       join pg_class c on c.oid = t.oid
       join pg_namespace n on n.oid = c.relnamespace
       join pg_roles o on o.oid = c.relowner
       join pg_roles r on r.rolcanlogin and not r.rolsuper and pg_has_role(r.oid, o.oid, 'member')
      group by r.oid, r.rolname, o.rolname
      order by 1, 2`,
    [oids],
  )
  for (const row of rows ?? []) {
    const { role, owner } = row
    const names = JSON.parse(row['names']!) as string[]
    const isOwner = role === owner
    const isInUse = row['sessions'] !== '0'
    const which = `${enumerate(names.slice(0, 3))}${names.length > 3 ? ` and ${names.length - 3} more protected tables` : ''}`
    exam.found(
      'owner-may-bypass',
      isInUse ? 'warning' : 'note',
      `role ${role!}`,
      `Role ${role!} ${isInUse ? 'is in use and ' : 'can log in and '}${isOwner ? 'owns' : `is a member of the owner ${owner!} of`} ${which}, so it may disable the triggers.`,
      isOwner
        ? otherOwner(owner!, names)
        : sql(`revoke ${escapeIdentifier(owner!)} from ${escapeIdentifier(role!)};`),
    )
  }
}

function otherOwner(owner: string, tables: readonly string[]): { kind: 'sql'; text: string } {
  const other = escapeIdentifier(`${owner}_tables`)
  return {
    kind: 'sql',
    text: [
      `create role ${other} nologin;`,
      ...tables.flatMap((table) => [
        `alter table ${table} owner to ${other};`,
        `grant select, insert, update, delete on ${table} to ${escapeIdentifier(owner)};`,
      ]),
    ].join('\n'),
  }
}

async function checkTriggerGrants(exam: Examination, oids: readonly string[]): Promise<void> {
  const rows = await exam.look(
    { what: 'the rights on protected tables', needs: 'the right to read the catalogs' },
    `${tree}
     select format('%I.%I', n.nspname, c.relname) as "table",
            case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end as role
       from tree t
       join pg_class c on c.oid = t.oid
       join pg_namespace n on n.oid = c.relnamespace
      cross join lateral aclexplode(c.relacl) a
      where a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner
      order by 1, 2`,
    [oids],
  )
  for (const row of rows ?? []) {
    exam.found(
      'trigger-grant',
      'warning',
      row['table']!,
      `${row['role'] === 'public' ? 'Everybody' : `Role ${row['role']!}`} may make triggers on ${row['table']!}: replace those of the protection, or change rows after the check.`,
      sql(`revoke trigger on ${row['table']!} from ${row['role']!};`),
    )
  }
}

/** Apply workers run as replicas, and fire no statement triggers. */
async function checkSubscriptions(exam: Examination, oids: readonly string[]): Promise<void> {
  const rows = await exam.look(
    { what: 'the subscriptions', needs: 'the right to read the catalogs' },
    `${tree}
     select quote_ident(s.subname) as name, s.subenabled::text as is_enabled, (n.nspname = 'fencepost')::text as is_own,
            string_agg(format('%I.%I', n.nspname, c.relname), ', ' order by n.nspname, c.relname) as tables
       from pg_subscription s
       join pg_subscription_rel l on l.srsubid = s.oid
       join pg_class c on c.oid = l.srrelid
       join pg_namespace n on n.oid = c.relnamespace
      where s.subdbid = (select d.oid from pg_database d where d.datname = current_database())
        and (n.nspname = 'fencepost' or c.oid in (select t.oid from tree t))
      group by 1, 2, 3 order by 1, 3`,
    [oids],
  )
  for (const row of rows ?? []) {
    const { name, tables } = row
    const isEnabled = row['is_enabled'] === 'true'
    exam.found(
      'subscription',
      isEnabled ? 'error' : 'warning',
      `subscription ${name!}`,
      `The subscription ${name!} ${isEnabled ? 'writes' : 'is disabled, but once enabled writes'} ${tables!} ${row['is_own'] === 'true' ? 'past the functions, so that leases of two databases mix' : 'past the triggers'}.`,
      isEnabled
        ? sql(`alter subscription ${name!} disable;`)
        : advice(
            `Take the tables out of its publication (alter publication … drop table ${tables!}), then: alter subscription ${name!} refresh publication; or drop it: drop subscription ${name!};`,
          ),
    )
  }
}

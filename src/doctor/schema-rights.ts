import type { TextRow } from '../database/connection.ts'
import { type Examination, command, enumerate, isFenceOnly, sql } from './examination.ts'
import type { Shipped } from './shipped.ts'

/** Who owns the schema and what is in it, and who may do what with it. */
export async function checkRights(exam: Examination, shipped: Shipped): Promise<void> {
  await checkOwners(exam)
  await checkGrants(exam, shipped)
}

/** What "migrate" must be told in this kind of database. */
export function kindOptions(exam: Examination): string[] {
  return isFenceOnly(exam.facts) ? ['--fence-only'] : []
}

export function revokeFromPublic(shipped: Shipped): string {
  return [
    'revoke execute on all routines in schema fencepost from public;',
    ...[...shipped.publicFunctions].map((name) => `grant execute on function fencepost.${name} to public;`),
  ].join('\n')
}

async function checkOwners(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'the owners of the schema', needs: 'the right to read the catalogs' },
    `with space as (select n.oid, n.nspowner from pg_namespace n where n.nspname = 'fencepost'),
     part as (
       select 'schema fencepost' as what, s.nspowner as owner from space s
       union all
       select format('%s fencepost.%I',
                     case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table'
                                    else 'table' end, c.relname), c.relowner
         from pg_class c join space s on s.oid = c.relnamespace where c.relkind in ('r', 'p', 'v', 'm', 'f')
       union all
       select format('%s fencepost.%I(%s)', case p.prokind when 'p' then 'procedure' else 'function' end, p.proname,
                     oidvectortypes(p.proargtypes)), p.proowner
         from pg_proc p join space s on s.oid = p.pronamespace),
     -- Whoever owns most of it has installed it.
     usual as (select mode() within group (order by p.owner) as owner from part p)
     select p.what, quote_ident(pg_get_userbyid(p.owner)) as owner, quote_ident(pg_get_userbyid(u.owner)) as usual
       from part p, usual u where p.owner <> u.owner order by p.what`,
  )
  for (const row of rows ?? []) {
    exam.found(
      'foreign-owner',
      'error',
      row['what']!.replace(/^\S+ /, row['what']!.startsWith('schema') ? 'schema ' : ''),
      `The ${row['what']!} belongs to role ${row['owner']!}, and the rest of the schema to ${row['usual']!}: its owner can change what it does.`,
      sql(`alter ${row['what']!} owner to ${row['usual']!};`),
    )
  }
}

async function checkGrants(exam: Examination, shipped: Shipped): Promise<void> {
  const rows = await exam.look(
    { what: 'the rights on the schema', needs: 'the right to read the catalogs' },
    `with space as (select n.oid, n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'fencepost')
     select 'create' as kind, 'fencepost' as object, a.grantee::text as grantee_oid,
            case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end as grantee
       from space s, aclexplode(s.nspacl) a where a.privilege_type = 'CREATE' and a.grantee <> s.nspowner
     union all
     select 'execute', p.proname, '0', 'public'
       from pg_proc p join space s on s.oid = p.pronamespace
      cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      where a.grantee = 0
     union all
     select distinct case when a.privilege_type = 'SELECT' then 'read' else 'write' end, c.relname, a.grantee::text,
            case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
       from pg_class c join space s on s.oid = c.relnamespace
      cross join lateral aclexplode(c.relacl) a
      -- A view over one table is written, and read, with its owner's rights.
      where c.relkind in ('r', 'p', 'v') and a.grantee <> c.relowner
        and (a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES')
             or a.privilege_type = 'SELECT' and c.relname in ('holder', 'lease', 'highest_token', 'current_term'))
     union all
     select case r.rolname when 'pg_read_all_data' then 'read all' else 'write all' end, r.rolname, m.member::text,
            quote_ident(pg_get_userbyid(m.member))
       from pg_auth_members m join pg_roles r on r.oid = m.roleid
      where r.rolname in ('pg_read_all_data', 'pg_write_all_data')
      order by 1, 2, 4`,
  )
  if (rows === undefined) return
  for (const row of rows) checkGrant(exam, row)
  const open = rows
    .filter((row) => row['kind'] === 'execute' && !shipped.publicFunctions.has(row['object']!))
    .map((row) => `${row['object']!}()`)
  if (open.length > 0) {
    exam.found(
      'public-execute',
      'warning',
      'schema fencepost',
      `Everybody who may use the schema may call ${enumerate(open.slice(0, 3))}${open.length > 3 ? ` and ${open.length - 3} more of its functions` : ''}.`,
      sql(revokeFromPublic(shipped)),
    )
  }
  await checkCompleteness(exam)
}

function checkGrant(exam: Examination, row: TextRow): void {
  const { kind, object, grantee } = row
  const who = grantee === 'public' ? 'Everybody' : `Role ${grantee!}`
  switch (kind) {
    case 'create':
      exam.found(
        'create-granted',
        'error',
        `role ${grantee!}`,
        `${who} may create objects in the schema "fencepost", which functions that run with the owner's rights would then call.`,
        sql(`revoke create on schema fencepost from ${grantee!};`),
      )
      break
    case 'write':
      exam.found(
        'table-writable',
        'warning',
        `fencepost.${object!}`,
        `${who} may change fencepost.${object!} past the functions, and so make or end a term by hand.`,
        sql(
          `revoke insert, update, delete, truncate, trigger, references on fencepost.${object!} from ${grantee!};`,
        ),
      )
      break
    case 'read':
      exam.found(
        'holder-id-readable',
        'note',
        `fencepost.${object!}`,
        `${who} may read fencepost.${object!} and with it the ids of holders: whoever knows one may act as the holder.`,
        sql(
          `revoke select on fencepost.${object!} from ${grantee!};\n` +
            `grant select on fencepost.${isFenceOnly(exam.facts) ? 'announced_terms' : 'leases'} to ${grantee!};`,
        ),
      )
      break
    case 'read all':
    case 'write all': {
      const isWrite = kind === 'write all'
      exam.found(
        isWrite ? 'table-writable' : 'holder-id-readable',
        isWrite ? 'warning' : 'note',
        `role ${grantee!}`,
        isWrite
          ? `${who} is a member of pg_write_all_data, so it may change leases past the functions.`
          : `${who} is a member of pg_read_all_data, so it may read the ids of holders.`,
        sql(`revoke ${object!} from ${grantee!};`),
      )
      break
    }
    default:
  }
}

/** After an upgrade the rights must be given again: a role that may take leases, or call the fence, needs all of them. */
async function checkCompleteness(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'what the roles may call', needs: 'the right to read the catalogs' },
    `with space as (select n.oid, n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'fencepost'),
     own as (select p.oid, p.proname from pg_proc p join space s on s.oid = p.pronamespace
              where p.proname not in ('purge', 'purge_some', 'raise_token_floor', 'set_sequence_kind', 'force_release', 'fenced_sessions')),
     role as (
       select distinct a.grantee as oid from space s, aclexplode(s.nspacl) a
        where a.privilege_type = 'USAGE' and a.grantee not in (0, s.nspowner))
     select pg_get_userbyid(r.oid)::text as role,
            (select string_agg(o.proname || '()', ' ' order by o.proname) from own o
              where not has_function_privilege(r.oid, o.oid, 'execute')) as lacking
       from role r
      where exists (select from own o where o.proname = 'fence' and has_function_privilege(r.oid, o.oid, 'execute'))
        and (exists (select from own o where o.proname = 'acquire' and has_function_privilege(r.oid, o.oid, 'execute'))
             or not exists (select from own o where o.proname = 'acquire'))
      order by 1`,
  )
  for (const row of rows ?? []) {
    if (row['lacking'] === null || row['lacking'] === undefined) continue
    const lacking = row['lacking'].split(' ')
    exam.found(
      'grant-incomplete',
      'warning',
      `role ${row['role']!}`,
      `Role ${row['role']!} may use leases, but may not call ${enumerate(lacking.slice(0, 3))}${lacking.length > 3 ? ` and ${lacking.length - 3} more functions` : ''}.`,
      command('fencepost', 'migrate', ...kindOptions(exam), '--grant-to', row['role']!),
    )
  }
}

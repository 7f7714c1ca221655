import { escapeIdentifier, escapeLiteral } from 'pg'
import type { TextRow } from '../database/connection.ts'
import { type Examination, advice, sql } from './examination.ts'
import { type Recorded, tokenSetting } from './records.ts'

/** As the schema's stamp_default() has it: an expression, so that whoever inserts needs no right to a function. */
function stampDefault(setting: string): string {
  return `coalesce(nullif(current_setting('${setting}', true), ''), '0')::bigint`
}

/** The fence columns of protected tables: there, of the right type, and stamped by an INSERT. */
export async function checkColumns(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  for (const one of recorded) {
    if (one.table === undefined) continue
    // oxlint-disable-next-line no-await-in-loop -- One session, one query at a time.
    const rows = await exam.look(
      { what: `the fence column of ${one.table}`, needs: 'the right to read the catalogs' },
      `with recursive tree as (
         select $1::oid as oid
         union
         select i.inhrelid from pg_inherits i join tree t on t.oid = i.inhparent)
       select format('%I.%I', n.nspname, c.relname) as "table", (c.oid = $1::oid)::text as is_root,
              format_type(a.atttypid, a.atttypmod) as type, (a.attgenerated <> '' or a.attidentity <> '')::text as is_special,
              pg_get_expr(d.adbin, d.adrelid) as standard
         from tree t
         join pg_class c on c.oid = t.oid and c.relkind in ('r', 'p')
         join pg_namespace n on n.oid = c.relnamespace
         left join pg_attribute a on a.attrelid = c.oid and a.attname = $2 and a.attnum > 0 and not a.attisdropped
         left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        order by c.oid <> $1::oid, 1`,
      [one.oid, one.fenceColumn],
    )
    for (const row of rows ?? []) {
      reportColumn(exam, one, row)
      // What is wrong with the column of the table is wrong with that of every partition.
      if (row['is_root'] === 'true' && (row['type'] ?? null) !== 'bigint') break
    }
  }
}

function reportColumn(exam: Examination, recorded: Recorded, row: TextRow): void {
  const table = row['table']!
  const column = escapeIdentifier(recorded.fenceColumn)
  const setting = tokenSetting(recorded.guard)
  const standard = row['standard'] ?? ''
  if (row['type'] === null || row['type'] === undefined) {
    exam.found(
      'fence-column-missing',
      'error',
      table,
      `${table} is protected, but its fence column ${column} is gone, so its rows tell no longer which term wrote them.`,
      sql(
        `alter table ${table} add column ${column} bigint not null default 0;\n` +
          `alter table ${table} alter column ${column} set default ${stampDefault(setting)};`,
      ),
    )
  } else if (row['type'] !== 'bigint' || row['is_special'] === 'true') {
    exam.found(
      'fence-column-type',
      'error',
      table,
      `The fence column ${column} of ${table} is ${row['is_special'] === 'true' ? 'generated' : `of type ${row['type']}`}, and must be a plain bigint.`,
      row['is_special'] === 'true'
        ? advice(
            `Replace it with a plain column: alter table ${table} alter column ${column} drop expression;`,
          )
        : sql(
            `alter table ${table} alter column ${column} drop default;\n` +
              `alter table ${table} alter column ${column} type bigint using ${column}::bigint;\n` +
              `alter table ${table} alter column ${column} set default ${stampDefault(setting)};`,
          ),
    )
  } else if (!recorded.isStamped && !standard.includes(`current_setting('${setting}'`)) {
    exam.found(
      'fence-default-missing',
      'warning',
      table,
      standard.includes("current_setting('fencepost.token_")
        ? `The default of the fence column ${column} of ${table} stamps new rows with the token of another guard than "${recorded.guard}".`
        : `The fence column ${column} of ${table} lacks the default that stamps new rows with the token.`,
      sql(`alter table ${table} alter column ${column} set default ${stampDefault(setting)};`),
    )
  }
}

/** A table that may carry stamps. */
interface Stamped {
  readonly table: string
  readonly column: string
  readonly isIndexed: boolean
  readonly blocks: number
  /** Of a protected table. */
  readonly guard: string | undefined
}

/**
 * Stamps above what the sequence has given out, as a partial restore leaves them: until the sequence has caught up, the writes
 * of every new term are refused. An index answers at once; a large table without one is sampled.
 */
export async function checkStamps(exam: Examination, recorded: readonly Recorded[]): Promise<void> {
  const { relations } = exam.facts
  // Where leases live elsewhere, only what they have announced here is known, and each counts for itself.
  const isElsewhere = relations.has('highest_token')
  if (!isElsewhere && !relations.has('token_sequence')) return
  const given = await exam.look(
    {
      what: 'the tokens given out',
      needs: `SELECT on fencepost.${isElsewhere ? 'announced_terms' : 'token_sequence'}`,
    },
    isElsewhere
      ? 'select t.lease as name, t.token::text as last from fencepost.announced_terms t'
      : `select s.name, s.last_token::text as last from fencepost.token_sequence s order by s.last_token desc, s.name`,
  )
  if (given === undefined) return
  const sequences = isElsewhere
    ? new Map(recorded.map((one) => [one.guard, one.guard]))
    : await readGuardSequences(exam, recorded)
  for (const stamped of await readStamped(exam, recorded)) {
    const known = given.find((one) => one['name'] === sequences.get(stamped.guard ?? ''))
    // Where the sequence is not known, the highest one: rather no word than a false one.
    const source = known ?? (isElsewhere ? undefined : given[0])
    if (source === undefined) continue
    // oxlint-disable-next-line no-await-in-loop -- One session, one query at a time.
    const highest = await readHighest(exam, stamped, source['last']!)
    if (highest <= BigInt(source['last']!)) continue
    if (isElsewhere) reportUnannounced(exam, stamped, source['name']!, source['last']!, highest)
    else reportAbove(exam, stamped, source['name']!, source['last']!, highest)
  }
}

async function readStamped(exam: Examination, recorded: readonly Recorded[]): Promise<Stamped[]> {
  const own = recorded.filter((one) => one.table !== undefined)
  const rows = await exam.look(
    { what: 'the fence columns', needs: 'the right to read the catalogs' },
    `with recursive tree as (
       select p.oid, p.oid as root, p.name from unnest($1::oid[], $2::name[]) p (oid, name)
       union
       select i.inhrelid, t.root, t.name from pg_inherits i join tree t on t.oid = i.inhparent),
     -- Those of fenced repositories are not recorded, but have the usual name.
     stamped as (
       select t.oid, t.root, t.name from tree t
       union
       select a.attrelid, 0, a.attname from pg_attribute a
        where a.attname = 'fence_token' and a.attnum > 0 and not exists (select from tree t where t.oid = a.attrelid))
     select format('%I.%I', n.nspname, c.relname) as "table", s.name as "column", s.root::text as root,
            exists (select from pg_index x
                     where x.indrelid = c.oid and x.indkey[0] = a.attnum and x.indpred is null and x.indisvalid
                       and x.indexprs is null)::text as is_indexed,
            (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::text as blocks
       from stamped s
       join pg_class c on c.oid = s.oid and c.relkind = 'r' and c.relpersistence <> 't'
       join pg_namespace n on n.oid = c.relnamespace and n.nspname not in ('pg_catalog', 'information_schema', 'fencepost')
       join pg_attribute a on a.attrelid = c.oid and a.attname = s.name and a.atttypid = 'int8'::regtype
                          and not a.attisdropped
      order by 1 limit 1000`,
    [own.map((one) => one.oid), own.map((one) => one.fenceColumn)],
  )
  return (rows ?? []).map((row) => ({
    table: row['table']!,
    column: escapeIdentifier(row['column']!),
    isIndexed: row['is_indexed'] === 'true',
    blocks: Number(row['blocks']),
    guard: own.find((one) => one.oid === row['root'])?.guard,
  }))
}

/** The sequence of a table that one lease guards; a prefix or a template may stand for leases of several sequences. */
async function readGuardSequences(
  exam: Examination,
  recorded: readonly Recorded[],
): Promise<Map<string, string>> {
  if (!exam.facts.relations.has('lease') || recorded.length === 0) return new Map()
  const rows = await exam.look(
    { what: 'the sequences of leases', needs: 'SELECT on fencepost.lease' },
    'select l.name, l.sequence from fencepost.lease l where l.name = any ($1::text[])',
    [recorded.map((one) => one.guard)],
  )
  return new Map((rows ?? []).map((row) => [row['name']!, row['sequence']!]))
}

async function readHighest(exam: Examination, stamped: Stamped, last: string): Promise<bigint> {
  const { table, column, blocks } = stamped
  const { sampledBlocks } = exam.limits
  const isSampled = !stamped.isIndexed && blocks > sampledBlocks
  const sample = isSampled ? ` tablesample system (${((100 * sampledBlocks) / blocks).toPrecision(4)})` : ''
  const rows = await exam.look(
    { what: `the stamps of ${table}`, needs: `SELECT on ${table}` },
    `select coalesce(max(${column}), 0)::text as highest from only ${table}${sample}`,
  )
  await exam.letGo()
  if (rows !== undefined && isSampled) {
    exam.found(
      'stamps-sampled',
      'note',
      table,
      `Of the ${blocks} blocks of ${table} about ${sampledBlocks} were searched for stamps above the last token, ${last}.`,
      // No index is advised: it would keep every fenced update from being a heap-only one.
      sql(`select max(${column}) from only ${table};`),
    )
  }
  return BigInt(rows?.[0]?.['highest'] ?? '0')
}

function reportAbove(
  exam: Examination,
  { table }: Stamped,
  sequence: string,
  last: string,
  highest: bigint,
): void {
  exam.found(
    'stamp-above-sequence',
    'error',
    table,
    `A row of ${table} is stamped ${highest}, and the sequence "${sequence}" has given out tokens up to ${last} only, as after a partial restore: writes under new terms are refused.`,
    sql(`select fencepost.raise_token_floor(${escapeLiteral(sequence)}, ${highest});`),
  )
}

function reportUnannounced(
  exam: Examination,
  { table }: Stamped,
  lease: string,
  last: string,
  highest: bigint,
): void {
  exam.found(
    'stamp-above-sequence',
    'error',
    table,
    `A row of ${table} is stamped ${highest}, and the highest token announced here for lease "${lease}" is ${last}, as after a partial restore: older terms are taken for the newest.`,
    // Under the id of no holder: the term that has this token, if it is still held, is refused until the next grant.
    sql(
      `insert into fencepost.highest_token (lease, token, holder_id) values (${escapeLiteral(lease)}, ${highest}, gen_random_uuid())\n` +
        '  on conflict (lease) do update set token = excluded.token, holder_id = excluded.holder_id\n' +
        '   where highest_token.token < excluded.token;',
    ),
  )
}

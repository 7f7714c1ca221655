import type { TextRow } from '../database/connection.ts'
import { requiredSchemaVersion } from '../database/schema.ts'
import { type Examination, advice, command, enumerate, isFenceOnly, sql } from './examination.ts'
import { checkRights, kindOptions, revokeFromPublic } from './schema-rights.ts'
import { checkRelations } from './schema-tables.ts'
import { type Shipped, type ShippedFunction, normalSetting, readShipped, versionOf } from './shipped.ts'

/** The schema "fencepost" itself: installed, of the right version, as shipped, in the right hands. */
export async function checkSchema(exam: Examination): Promise<void> {
  const { facts } = exam
  if (!facts.hasSchema || facts.schemaSource === undefined) {
    exam.found(
      'schema-missing',
      'error',
      'schema fencepost',
      `The schema "fencepost" is not installed in database ${facts.database}.`,
      command('fencepost', 'migrate'),
    )
    return
  }
  const shipped = await readShipped(isFenceOnly(facts) ? 'fence-only' : 'leases', facts.schemaSource)
  checkVersion(exam, facts.schemaSource, shipped)
  await checkFunctions(exam, shipped)
  await checkRelations(exam, shipped)
  await checkRights(exam, shipped)
}

function checkVersion(exam: Examination, source: string, shipped: Shipped): void {
  const installed = versionOf(source)
  const isPartial = isFenceOnly(exam.facts)
  const required = isPartial ? shipped.newestVersion : requiredSchemaVersion
  if (installed < required) {
    exam.found(
      'schema-outdated',
      'error',
      'schema fencepost',
      `The schema "fencepost" has version ${installed}, and this library needs ${required}.`,
      command('fencepost', 'migrate', ...kindOptions(exam)),
    )
  } else if (installed > shipped.newestVersion) {
    exam.found(
      'schema-newer',
      'note',
      'schema fencepost',
      `The schema "fencepost" has version ${installed}, and this library knows versions up to ${shipped.newestVersion}, so its functions were not compared.`,
      advice('Use the doctor of the version of fencepost that installed the schema.'),
    )
  }
}

async function checkFunctions(exam: Examination, shipped: Shipped): Promise<void> {
  const rows = await exam.look(
    { what: 'the functions of the schema', needs: 'the right to read the catalogs' },
    `select p.proname || '(' || oidvectortypes(p.proargtypes) || ')' as key, p.prosrc as source, p.prosecdef::text as is_definer, p.provolatile::text as volatility,
            array_to_json(coalesce(p.proconfig, '{}'))::text as settings,
            format('fencepost.%I(%s)', p.proname, oidvectortypes(p.proargtypes)) as signature
       from pg_proc p
      where p.pronamespace = (select n.oid from pg_namespace n where n.nspname = 'fencepost')
      order by p.proname`,
  )
  if (
    rows === undefined ||
    (!shipped.isKnown && versionOf(exam.facts.schemaSource ?? '') > shipped.newestVersion)
  )
    return
  const seen = new Set<string>()
  for (const row of rows) {
    const key = row['key']!
    const wanted = shipped.functions.get(key)
    seen.add(key)
    if (wanted === undefined) {
      exam.found(
        'object-unknown',
        'warning',
        row['signature']!,
        `The function ${row['signature']!} is not fencepost's, and functions that run with the owner's rights may call it.`,
        sql(`drop routine ${row['signature']!};`),
      )
      continue
    }
    const difference = functionDifference(row, wanted)
    if (difference === undefined) continue
    exam.found(
      'function-altered',
      'error',
      row['signature']!,
      `The function ${row['signature']!} is not the one that was shipped: ${difference}.`,
      sql(wanted.statement),
    )
  }
  for (const [key, wanted] of shipped.functions) {
    if (seen.has(key)) continue
    exam.found(
      'function-missing',
      'error',
      `fencepost.${key}`,
      `The function fencepost.${key} is gone; afterwards, give the roles their rights again with "fencepost migrate --grant-to".`,
      sql(`${wanted.statement}\n${revokeFromPublic(shipped)}`),
    )
  }
}

function functionDifference(row: TextRow, wanted: ShippedFunction): string | undefined {
  const settings = (JSON.parse(row['settings']!) as string[]).map(normalSetting).toSorted()
  const differences = [
    ...(row['source']!.replaceAll('\r\n', '\n') === wanted.source ? [] : ['its source']),
    ...(row['is_definer'] === String(wanted.isDefiner) ? [] : ['SECURITY DEFINER']),
    ...(settings.join('\n') === wanted.settings.join('\n') ? [] : ['its settings']),
    ...(row['volatility'] === wanted.volatility ? [] : ['its volatility']),
  ]
  return differences.length === 0
    ? undefined
    : `${enumerate(differences)} ${differences.length > 1 || differences[0] === 'its settings' ? 'differ' : 'differs'}`
}

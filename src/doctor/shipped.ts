import { readFile } from 'node:fs/promises'
import { readMigrations } from '../database/migration-files.ts'
import type { SchemaKind } from '../database/schema.ts'

/** A function or procedure as the migrations make it. */
export interface ShippedFunction {
  readonly name: string
  /** The whole statement, as CREATE OR REPLACE. */
  readonly statement: string
  readonly source: string
  readonly isDefiner: boolean
  readonly volatility: 'i' | 's' | 'v'
  /** As in pg_proc.proconfig, sorted. */
  readonly settings: readonly string[]
}

/** What the shipped migrations put into the schema. */
interface ShippedSchema {
  /** By name and types of arguments: `beat(uuid)`. */
  readonly functions: ReadonlyMap<string, ShippedFunction>
  /** Tables and views. */
  readonly relations: ReadonlySet<string>
  /** The queries of those views that are plain enough to be compared, as `normalQuery` writes them. */
  readonly views: ReadonlyMap<string, string>
  readonly triggers: ReadonlySet<string>
  /** Functions that everybody may call, with their arguments. */
  readonly publicFunctions: ReadonlySet<string>
}

export interface Shipped extends ShippedSchema {
  /** False when no shipped migration makes the version that is installed. */
  readonly isKnown: boolean
  readonly newestVersion: number
}

/**
 * The schema as it is shipped, up to the version that is installed. It is read out of the migrations themselves, so that it
 * cannot fall behind them.
 */
export async function readShipped(kind: SchemaKind, installedSource: string): Promise<Shipped> {
  const paths = (await readMigrations(kind)).flatMap((migration) => migration.filePaths)
  const state = {
    functions: new Map<string, ShippedFunction>(),
    relations: new Set<string>(),
    views: new Map<string, string>(),
    triggers: new Set<string>(),
    publicFunctions: new Set<string>(),
  }
  let found: ShippedSchema | undefined
  for (const text of await Promise.all(paths.map((path) => readFile(path, 'utf8')))) {
    readMigration(text, state)
    if (state.functions.get('schema_version()')?.source.trim() === installedSource.trim()) {
      found = {
        functions: new Map(state.functions),
        relations: new Set(state.relations),
        views: new Map(state.views),
        triggers: new Set(state.triggers),
        publicFunctions: new Set(state.publicFunctions),
      }
    }
  }
  const newest = state.functions.get('schema_version()')?.source ?? ''
  return {
    ...(found ?? state),
    isKnown: found !== undefined,
    newestVersion: Number(/\d+/.exec(newest)?.[0] ?? 0),
  }
}

/** The number that the body of schema_version() returns. */
export function versionOf(source: string): number {
  return Number(/\d+/.exec(source)?.[0] ?? 0)
}

interface Mutable {
  readonly functions: Map<string, ShippedFunction>
  readonly relations: Set<string>
  readonly views: Map<string, string>
  readonly triggers: Set<string>
  readonly publicFunctions: Set<string>
}

// A function is taken as a whole, so that statements inside its body are not read as the migration's own.
const statements = new RegExp(
  [
    String.raw`create\s+(?:or\s+replace\s+)?(?:function|procedure)\s+fencepost\.(?<made>\w+)\s*(?<head>\([\s\S]*?)\bas\s+(?:(?<quote>\$\w*\$)(?<body>[\s\S]*?)\k<quote>|'(?<text>[^']*)')`,
    String.raw`\bdo\s+(?<block>\$\w*\$)[\s\S]*?\k<block>`,
    String.raw`drop\s+(?:function|procedure)\s+(?:if\s+exists\s+)?fencepost\.(?<dropped>\w+\([^)]*\))`,
    String.raw`create\s+(?:or\s+replace\s+)?view\s+fencepost\.(?<view>\w+)\s+as\s+(?<query>[^;]+);`,
    String.raw`create\s+(?:unlogged\s+)?table\s+(?:if\s+not\s+exists\s+)?fencepost\.(?<relation>\w+)`,
    String.raw`drop\s+(?:table|view)\s+(?:if\s+exists\s+)?fencepost\.(?<gone>\w+)`,
    String.raw`create\s+(?:or\s+replace\s+)?(?:constraint\s+)?trigger\s+(?<trigger>\w+)`,
    String.raw`grant\s+execute\s+on\s+function\s+(?<public>[^;]+?)\s+to\s+public`,
  ].join('|'),
  'gi',
)

function readMigration(text: string, state: Mutable): void {
  const [up = ''] = withoutComments(text.replaceAll('\r\n', '\n')).split('-- Down Migration')
  for (const { 0: whole, groups = {} } of up.matchAll(statements)) {
    if (groups['made'] !== undefined) {
      const { made, head = '', body = '', text: plain = '' } = groups
      state.functions.set(
        `${made}(${argumentTypes(head)})`,
        readFunction(whole, made, head, body === '' ? plain : body),
      )
    }
    if (groups['dropped'] !== undefined) state.functions.delete(groups['dropped'].replaceAll(/\s+/g, ' '))
    if (groups['relation'] !== undefined) state.relations.add(groups['relation'])
    if (groups['view'] !== undefined) {
      state.relations.add(groups['view'])
      const query = normalQuery(groups['query'] ?? '')
      if (query !== undefined) state.views.set(groups['view'], query)
    }
    if (groups['gone'] !== undefined) {
      state.relations.delete(groups['gone'])
      state.views.delete(groups['gone'])
    }
    if (groups['trigger'] !== undefined) state.triggers.add(groups['trigger'])
    for (const [, name] of (groups['public'] ?? '').matchAll(/fencepost\.(\w+)/g)) {
      state.publicFunctions.add(name!)
    }
  }
}

/** Comments at the start of a line, outside functions; those inside belong to the source that the server keeps. */
function withoutComments(text: string): string {
  let isInside = false
  return text
    .split('\n')
    .filter((line) => {
      const quotes = line.match(/\$\w*\$/g)?.length ?? 0
      const isComment = !isInside && line.startsWith('--') && !line.startsWith('-- Down Migration')
      if (!isComment && quotes % 2 === 1) isInside = !isInside
      return !isComment
    })
    .join('\n')
}

const aliases: Readonly<Record<string, string>> = { timestamptz: 'timestamp with time zone', int: 'integer' }

/** The types of the arguments that a caller gives, as oidvectortypes() writes them. */
function argumentTypes(head: string): string {
  const [, list = ''] = /^\(([^)]*)\)/.exec(head) ?? []
  return (
    list
      .split(',')
      .map((argument) => argument.replace(/\bdefault\b[\s\S]*$/i, '').trim())
      .filter((argument) => argument !== '' && !/^out\s/i.test(argument))
      .map((argument) => argument.replace(/^inout\s+/i, '').split(/\s+/))
      // Without a name, as in a signature, the type is all there is.
      .map((words) => (words.length > 1 ? words.slice(1) : words).join(' '))
      .map((type) => aliases[type] ?? type)
      .join(', ')
  )
}

function readFunction(whole: string, name: string, head: string, source: string): ShippedFunction {
  const settings = [...head.matchAll(/\bset\s+(\w+)\s*(?:=|\bto\b)\s*([\w, ]+?)\s*(?=\bset\b|\n|$)/gi)]
  return {
    name,
    statement: `${whole.replace(/^create\s+(?:or\s+replace\s+)?(function|procedure)/i, 'create or replace $1')};`,
    source,
    isDefiner: /\bsecurity\s+definer\b/i.test(head),
    volatility: /\bimmutable\b/i.test(head) ? 'i' : /\bstable\b/i.test(head) ? 's' : 'v',
    settings: settings.map(([, setting, value]) => normalSetting(`${setting!}=${value!}`)).toSorted(),
  }
}

/**
 * A query over one table that only names columns, in one form whoever has written it: the server leaves aliases out from
 * version 16 on. Undefined for every other one.
 */
export function normalQuery(query: string): string | undefined {
  const plain = query.trim().replaceAll(/\s+/g, ' ').replace(/;$/, '')
  const [, columns, table] = /^select ([\w., ]+) from ([\w.]+)(?: \w+)?$/i.exec(plain) ?? []
  if (columns === undefined || table === undefined) return undefined
  return `select ${columns.replaceAll(/\b\w+\.(?=\w)/g, '').replaceAll(/ as /gi, ' as ')} from ${table}`
}

export function normalSetting(setting: string): string {
  return setting.replaceAll(/\s*,\s*/g, ', ').trim()
}

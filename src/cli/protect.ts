import { Fencepost } from '../fencepost.ts'
import { protectSchemaSql, protectSql, unprotectSchemaSql, unprotectSql } from '../fence/protection.ts'
import { durationMs } from '../duration.ts'
import { InvalidArgumentError } from '../errors.ts'
import { type DatabaseOptions, databaseUrl } from './database-url.ts'
import { exitCode } from './exit-code.ts'
import { asTable } from './table.ts'

const dayMs = 86_400_000

export interface ProtectCommandOptions extends DatabaseOptions {
  readonly lease: string
  readonly fenceColumn?: string
  readonly stamp?: boolean
  readonly ddl?: string
  readonly wait?: string
  readonly sql?: boolean
}

export async function runProtect(table: string | undefined, options: ProtectCommandOptions): Promise<number> {
  const { lease, ddl } = options
  assertOneTarget(table, ddl)
  if (ddl !== undefined) {
    if (options.fenceColumn !== undefined || options.stamp === true) {
      throw new InvalidArgumentError(
        '--ddl',
        ddl,
        '--fence-column and --stamp are for tables; a schema has no rows',
      )
    }
    if (options.sql === true) return print(protectSchemaSql(ddl, { lease }))
    await Fencepost.protectSchema(ddl, { connectionString: await databaseUrl(options), lease })
    console.log(`protected schema ${ddl}: DDL needs a fence of lease "${lease}"`)
    return exitCode.done
  }
  const wanted = { lease, fenceColumn: options.fenceColumn, stamp: options.stamp, wait: waitOf(options) }
  if (options.sql === true) return print(protectSql(table!, wanted))
  const count = await Fencepost.protect(table!, { connectionString: await databaseUrl(options), ...wanted })
  const partitions = count > 1 ? ` and its ${count - 1} partition${count === 2 ? '' : 's'}` : ''
  console.log(`protected ${table!}${partitions}: writes need a fence of lease "${lease}"`)
  return exitCode.done
}

export interface UnprotectCommandOptions extends DatabaseOptions {
  readonly ddl?: string
  readonly wait?: string
  readonly sql?: boolean
}

export async function runUnprotect(
  table: string | undefined,
  options: UnprotectCommandOptions,
): Promise<number> {
  const { ddl } = options
  assertOneTarget(table, ddl)
  if (options.sql === true) {
    return print(ddl === undefined ? unprotectSql(table!) : unprotectSchemaSql(ddl))
  }
  const connectionString = await databaseUrl(options)
  const was =
    ddl === undefined
      ? (await Fencepost.unprotect(table!, { connectionString, wait: waitOf(options) })) > 0
      : await Fencepost.unprotectSchema(ddl, { connectionString })
  const what = ddl === undefined ? table! : `schema ${ddl}`
  console.log(was ? `${what} is no longer protected` : `nothing to do: ${what} is not protected`)
  return exitCode.done
}

export async function runProtected(options: DatabaseOptions & { readonly json?: boolean }): Promise<number> {
  const { tables, schemas } = await Fencepost.protections({ connectionString: await databaseUrl(options) })
  if (options.json === true) {
    console.log(JSON.stringify({ tables, schemas }, undefined, 2))
    return exitCode.done
  }
  if (tables.length + schemas.length === 0) {
    console.log('nothing is protected yet')
    return exitCode.done
  }
  console.log(
    asTable(
      ['PROTECTED', 'LEASE', 'COLUMN', 'STAMPS', 'SINCE', 'TABLES', 'UNGUARDED'],
      [
        ...tables.map((one) => [
          one.table,
          one.guard,
          one.fenceColumn,
          one.isStamped ? 'every write' : 'inserts',
          one.since.toISOString(),
          String(one.tables),
          one.isDropped ? 'dropped' : one.unguarded.join(' '),
        ]),
        ...schemas.map((one) => [`schema ${one.schema}`, one.guard, '', '', one.since.toISOString(), '', '']),
      ],
      ['left', 'left', 'left', 'left', 'left', 'right', 'left'],
    ),
  )
  return exitCode.done
}

function assertOneTarget(table: string | undefined, ddl: string | undefined): void {
  if ((table === undefined) === (ddl === undefined)) {
    throw new InvalidArgumentError('table', table, 'name either a table or, with --ddl, a schema')
  }
}

function waitOf(options: { readonly wait?: string }): number | undefined {
  return options.wait === undefined
    ? undefined
    : durationMs('--wait', options.wait, { minMs: 0, maxMs: dayMs })
}

function print(sql: string): number {
  process.stdout.write(sql)
  return exitCode.done
}

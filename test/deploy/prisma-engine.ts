#!/usr/bin/env node
// Prisma's schema engine where its native program cannot be had: the same engine, which Prisma's command line brings along as
// WebAssembly, behind what that command line expects of the program: a request a line on stdin, an answer a line on stdout.
// It connects with `pg`. Where that differs from the native engine, it is made to do as that one does.
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { PrismaPg } from '@prisma/adapter-pg'

interface Request {
  readonly id: number
  readonly method: string
  readonly params: unknown
}
type Engine = Record<string, (params: unknown) => Promise<unknown>>
interface Binding {
  readonly SchemaEngine: {
    new: (options: object, log: (line: string) => void, adapter: object) => Promise<Engine>
  }
  readonly __wbg_set_wasm: (exports: object) => void
}
/** What the types of Node do not know. */
interface WebAssemblyOfNode {
  instantiate(
    code: Uint8Array,
    imports: object,
  ): Promise<{ instance: { exports: { readonly __wbindgen_start: () => void } } }>
}

const { values, positionals } = parseArgs({
  options: { datasource: { type: 'string' }, datamodels: { type: 'string', multiple: true } },
  allowPositionals: true,
  strict: false,
})
const { url } = JSON.parse(String(values.datasource)) as { url: string }

// The native engine reads the URL alone.
delete process.env['PGOPTIONS']

/** The native engine sends a migration as it is, so that all of its statements are one transaction. */
class WholeScripts extends PrismaPg {
  override async connect(): ReturnType<PrismaPg['connect']> {
    const connection = await super.connect()
    connection.executeScript = async (script) => {
      await connection.executeRaw({ sql: script, args: [], argTypes: [] })
    }
    return connection
  }
}

async function start(): Promise<Engine> {
  const require = createRequire(import.meta.url)
  const binding = require('@prisma/schema-engine-wasm/schema_engine_bg') as Binding
  const utils = createRequire(require.resolve('@prisma/adapter-pg'))('@prisma/driver-adapter-utils') as {
    readonly bindMigrationAwareSqlAdapterFactory: (factory: object) => object
  }
  const file = require.resolve('prisma/package.json').replace('package.json', 'build/schema_engine_bg.wasm')
  const { WebAssembly } = globalThis as unknown as { WebAssembly: WebAssemblyOfNode }
  const { instance } = await WebAssembly.instantiate(await readFile(file), {
    './schema_engine_bg.js': binding,
  })
  const { __wbg_set_wasm: setExports, SchemaEngine } = binding
  const { __wbindgen_start: startModule } = instance.exports
  setExports(instance.exports)
  startModule()
  const factory = new WholeScripts({ connectionString: url, max: 1 })
  const adapter = utils.bindMigrationAwareSqlAdapterFactory(factory)
  return SchemaEngine.new({ datamodels: undefined }, () => {}, adapter)
}

const engine = await start()
if (positionals[0] === 'cli') {
  await engine['ensureConnectionValidity']!({ datasource: { tag: 'ConnectionString', url } })
  process.exit(0)
}
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line) as Request
  let answer: object
  try {
    answer = { result: (await engine[method]!(params)) ?? null }
  } catch (error) {
    const { message, code } = error as { message: string; code?: string }
    answer = { error: { code: 4466, message, data: { is_panic: false, message, error_code: code ?? null } } }
  }
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...answer })}\n`)
}
process.exit(0)

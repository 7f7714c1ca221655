import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { PrismaPg } from '@prisma/adapter-pg'
import { fenceLiteral } from '../../fence/fence.ts'
import type { DemoClient, DemoWrite } from './demo-client.ts'

const schema = `
datasource db {
  provider = "postgresql"
}
generator client {
  provider = "prisma-client"
  output   = "./generated"
}
model Account {
  id         Int    @id
  balance    Int
  fenceToken BigInt @map("fence_token")
  @@map("fencepost_demo")
}
model Line {
  id         Int    @id @default(autoincrement())
  balance    Int
  fenceToken BigInt @map("fence_token")
  @@map("fencepost_demo_line")
}
`

interface Values {
  readonly balance: number
  readonly fenceToken: bigint
}

/** What the demo uses of the client that Prisma generates from the schema. */
interface Transaction {
  readonly account: {
    update(query: { readonly where: { readonly id: number }; readonly data: Values }): Promise<unknown>
  }
  readonly line: { create(query: { readonly data: Values }): Promise<unknown> }
  $executeRawUnsafe(sql: string): Promise<number>
}
interface Client extends Transaction {
  $transaction(work: (tx: Transaction) => Promise<void>): Promise<void>
  $disconnect(): Promise<void>
}
interface Generated {
  readonly PrismaClient: new (options: { readonly adapter: PrismaPg }) => Client
}

const require = createRequire(import.meta.url)

export async function missing(): Promise<string | undefined> {
  for (const name of ['@prisma/client', 'prisma']) {
    try {
      require.resolve(`${name}/package.json`)
    } catch {
      return `${name} is not installed: npm install ${name}`
    }
  }
  // What Prisma generates is TypeScript.
  return process.features.typescript === false
    ? 'the client that it generates needs Node 22.18 or newer'
    : undefined
}

export async function open(url: string): Promise<DemoClient> {
  const folder = await mkdtemp(join(tmpdir(), 'fencepost-prisma-'))
  try {
    const { PrismaClient } = await generate(folder)
    const client = new PrismaClient({ adapter: new PrismaPg({ connectionString: url, max: 1 }) })
    // The first query loads what is left to load, so that the folder can go.
    await client.$executeRawUnsafe('select 1')
    return {
      fenced: (fence, write) =>
        client.$transaction(async (tx) => {
          await tx.$executeRawUnsafe(fenceLiteral(fence.term, {}))
          await draw(tx, write)
        }),
      unfenced: (write) => client.$transaction((tx) => draw(tx, write)),
      close: () => client.$disconnect(),
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function draw(tx: Transaction, { balance, token }: DemoWrite): Promise<void> {
  const data = { balance, fenceToken: token }
  await tx.line.create({ data })
  await tx.account.update({ where: { id: 1 }, data })
}

/** Has Prisma's own command line write its client into the folder, and loads it from there. */
async function generate(folder: string): Promise<Generated> {
  await writeFile(join(folder, 'schema.prisma'), schema)
  const runtime = dirname(require.resolve('@prisma/client/package.json'))
  await mkdir(join(folder, 'node_modules/@prisma'), { recursive: true })
  await symlink(runtime, join(folder, 'node_modules/@prisma/client'), 'junction')
  const cli = join(dirname(require.resolve('prisma/package.json')), 'build/index.js')
  await promisify(execFile)(process.execPath, [cli, 'generate', '--schema', 'schema.prisma'], {
    cwd: folder,
    env: {
      ...process.env,
      // The engine for migrations would be downloaded, although generating does not use it: any file will do.
      PRISMA_SCHEMA_ENGINE_BINARY: process.execPath,
      PRISMA_HIDE_UPDATE_MESSAGE: '1',
      CHECKPOINT_DISABLE: '1',
    },
  })
  return import(pathToFileURL(join(folder, 'generated/client.ts')).href)
}

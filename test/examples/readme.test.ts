import { readFile, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { runCli } from '../support/cli.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const folder = join(root, 'examples')
const names = (await readdir(folder, { withFileTypes: true })).flatMap((entry) =>
  entry.isFile() && entry.name !== 'README.md' ? [entry.name] : [],
)
const readme = await readFile(join(folder, 'README.md'), 'utf8')
const texts = new Map(
  await Promise.all(names.map(async (name) => [name, await readFile(join(folder, name), 'utf8')] as const)),
)

test('the page names every file, and no other', () => {
  const rows = readme.slice(0, readme.indexOf('The database needs')).split('\n')
  const named = rows.flatMap((row) =>
    [...(row.split('|')[2] ?? '').matchAll(/`([^`]+)`/g)].map(([, name]) => name),
  )
  expect(new Set(named)).toEqual(new Set(names))
})

test('every option that the files and the page give to fencepost is one that its help and docs/run.md tell of', async () => {
  const { stdout: help } = await runCli(['run', '--help'])
  const manual = await readFile(join(root, 'docs/run.md'), 'utf8')
  // Of docker, npm and kubectl, and what every command has.
  const others = new Set(['--help', '--init', '--rm', '--stop-timeout', '--omit', '--from-file'])
  const given = [...texts.values(), readme].flatMap((text) => text.match(/(?<=[\s`"[])--[a-z][a-z-]+/g) ?? [])
  const ours = new Set(given.filter((option) => !others.has(option)))
  expect([...ours].toSorted()).toEqual([
    '--grace',
    '--label',
    '--max-hold',
    '--meta',
    '--min-hold',
    '--on-conflict',
    '--ttl',
    '--wait',
  ])
  for (const option of ours) {
    expect(help, option).toContain(`${option} <`)
    expect(manual, option).toContain(option)
  }
})

test('no file has a password in it', () => {
  for (const [name, text] of texts) {
    expect(text, name).not.toMatch(/postgres(ql)?:\/\/[^…']/)
  }
})

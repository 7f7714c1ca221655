import { describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { exitCode } from '../../src/cli/exit-code.ts'
import { eventually } from '../support/cli.ts'
import type { TestDatabase } from '../support/database.ts'
import { exampleText, useExampleApp } from '../support/example-app.ts'
import { Gate } from '../support/gate.ts'
import { Program, runProgram } from '../support/program.ts'
import { closeGate, endsWithinMs, freshDatabase, readRun, stateOf } from './bench.ts'
import { type Container, type Deployment, type Job, faultsOf, podCommand, shapes } from './manifest.ts'

const app = useExampleApp()
const jobText = await exampleText('kubernetes-job.yaml')
const deploymentText = await exampleText('kubernetes-init-container.yaml')
const job = parse(jobText) as Job
const deployment = parse(deploymentText) as Deployment
const jobContainer = job.spec.template.spec.containers[0]!
const initContainer = deployment.spec.template.spec.initContainers![0]!

/** A pod's container as the kubelet starts it, but as a process. */
function startPod(container: Container, database: TestDatabase, name = 'shop-migrate-x7k2p'): Program {
  const { command, env } = podCommand(container, { name, secrets: { 'shop-database/url': database.url } })
  return new Program(command, { cwd: app.folder, env: app.environment(env) })
}

/** The same manifest, with one word replaced: what a test cannot wait for. */
function withArgument(container: Container, word: string, replacement: string): Container {
  expect(container.args).toContain(word)
  return { ...container, args: container.args.map((one) => (one === word ? replacement : one)) }
}

/** What the Job controller does about a pod that ended so, by the first rule that fits. */
function actionFor(code: number): string {
  const rule = job.spec.podFailurePolicy.rules.find(({ onExitCodes }) => onExitCodes?.values.includes(code))
  return rule?.action ?? 'Count'
}

describe('the manifests', () => {
  test('have no field that the API does not have', () => {
    expect(faultsOf(job, shapes.job)).toEqual([])
    expect(faultsOf(deployment, shapes.deployment)).toEqual([])
    const misspelt = parse(jobText.replace('backoffLimit:', 'backOffLimit:')) as Job
    expect(faultsOf(misspelt, shapes.job)).toEqual(['spec.backOffLimit: no such field'])
  })

  test('have a pod failure policy that the API takes', () => {
    expect(job.spec.template.spec.restartPolicy).toBe('Never')
    for (const { onExitCodes } of job.spec.podFailurePolicy.rules) {
      if (onExitCodes === undefined) continue
      expect(onExitCodes.containerName).toBe(jobContainer.name)
      expect(onExitCodes.values).not.toContain(0)
      expect(onExitCodes.values).toEqual(onExitCodes.values.toSorted((a, b) => a - b))
    }
  })

  test('tell the exit codes of fencepost apart', () => {
    const actions = Object.entries(exitCode).map(([name, code]) => [name, actionFor(code)])
    expect(Object.fromEntries(actions)).toMatchObject({
      failed: 'Count',
      usage: 'FailJob',
      databaseUnavailable: 'Count',
      leaseLost: 'Count',
      notAcquired: 'Ignore',
      notExecutable: 'FailJob',
      notFound: 'FailJob',
    })
  })

  test.for([
    ['Job', jobContainer, job.spec.template.spec, job.spec.activeDeadlineSeconds],
    ['Deployment', initContainer, deployment.spec.template.spec, deployment.spec.progressDeadlineSeconds],
  ] as const)('of the %s leave fencepost the time that it takes', ([, container, pod, deadline]) => {
    const { settings } = readRun(container.args)
    expect(deadline * 1000).toBeGreaterThan(settings.waitMs + settings.maxHoldMs!)
    // And as much again for the command itself.
    expect(pod.terminationGracePeriodSeconds * 1000).toBeGreaterThan(2 * endsWithinMs(settings))
    expect(settings.isSkippedOnConflict).toBe(false)
  })

  test('hold no password and start no npx', () => {
    for (const container of [jobContainer, initContainer]) {
      const secret = 'postgres://app:s3cret@db.example/app'
      const options = { name: 'pod', secrets: { 'shop-database/url': secret } }
      const { command, env } = podCommand(container, options)
      expect(env['DATABASE_URL']).toBe(secret)
      expect(command.join(' ')).not.toContain('s3cret')
      expect(command[0]).toBe('node_modules/.bin/fencepost')
    }
  })
})

describe('the Job', () => {
  test('migrates, and finds nothing to do the next time', async () => {
    const database = await freshDatabase()
    expect(await startPod(jobContainer, database).closed).toEqual({
      code: 0,
      signal: null,
      stdout: 'applied 0001_accounts.sql\n',
      stderr: '',
    })
    expect(await startPod(jobContainer, database).closed).toMatchObject({
      code: 0,
      stdout: 'nothing to do\n',
    })
  })

  test('is shown as the holder by the name of its pod', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const pod = startPod(jobContainer, database, 'shop-migrate-h2v9q')
    await gate.isReachedBy(1)
    const [lease] = await database.query(`select holder from fencepost.leases where name = 'deploy/shop'`)
    expect(lease).toEqual({ holder: 'shop-migrate-h2v9q' })
    await gate.open()
    expect(await pod.closed).toMatchObject({ code: 0 })
  })

  test('whose wait is over ends with 75, for which the Job tries again', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const first = startPod(jobContainer, database)
    await gate.isReachedBy(1)
    const second = await startPod(withArgument(jobContainer, '10m', '0s'), database).closed
    expect(second).toMatchObject({ code: 75, stdout: '' })
    expect(actionFor(second.code!)).toBe('Ignore')
    await gate.open()
    expect(await first.closed).toMatchObject({ code: 0 })
  })

  test('that is deleted gives the lease to the next before the kubelet kills', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const pod = startPod(jobContainer, database)
    await gate.isReachedBy(1)
    const next = startPod(jobContainer, database)
    await next.says('waiting for lease "deploy/shop"', 'stderr')
    const graceMs = job.spec.template.spec.terminationGracePeriodSeconds * 1000
    expect(await pod.stop('SIGTERM', graceMs)).toMatchObject({ code: 143, isKilled: false, stdout: '' })
    await gate.open()
    expect(await next.closed).toMatchObject({ code: 0, stdout: 'applied 0001_accounts.sql\n' })
  })

  test('that is deleted while it waits leaves the line', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const first = startPod(jobContainer, database)
    await gate.isReachedBy(1)
    const second = startPod(jobContainer, database)
    await second.says('waiting for lease "deploy/shop"', 'stderr')
    expect(await second.stop('SIGTERM', 30_000)).toMatchObject({ code: 143, isKilled: false })
    expect(await database.query('select from fencepost.waiters')).toEqual([])
    await gate.open()
    expect(await first.closed).toMatchObject({ code: 0 })
  })

  test('that is deleted in the middle of a long statement is gone in time, but the server is not done', async () => {
    const database = await freshDatabase()
    await startPod(jobContainer, database).closed
    await database.query('truncate applied_migrations')
    await database.query('drop table accounts')
    await database.query('create table accounts (id integer)')
    await app.addMigration('0000_long.sql', 'alter table accounts add note text;')
    const gate = await Gate.close(database, 'accounts')
    const pod = startPod(jobContainer, database)
    await gate.isReachedBy(1)
    expect(await pod.stop('SIGTERM', 60_000)).toMatchObject({ code: 143, isKilled: false })
    expect(await stateOf(database, 'deploy/shop')).toBe('draining')
    await gate.open()
    await eventually(async () => (await stateOf(database, 'deploy/shop')) === 'free')
    // The client is gone, so nothing of it was committed.
    expect(await database.query('select from applied_migrations')).toEqual([])
  })
})

describe('the init containers of three pods', () => {
  const startAll = (container: Container, database: TestDatabase): Program[] =>
    ['shop-1', 'shop-2', 'shop-3'].map((name) => startPod(container, database, name))

  test('that start at once migrate once, and no app starts before that is done', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const pods = startAll(initContainer, database)
    await eventually(async () => (await database.query('select from fencepost.waiters')).length === 2)
    await gate.isReachedBy(1)
    await gate.open()
    const ended = await Promise.all(pods.map((pod) => pod.closed))
    expect(ended.map(({ code }) => code)).toEqual([0, 0, 0])
    expect(ended.map(({ stdout }) => stdout).toSorted()).toEqual([
      'applied 0001_accounts.sql\n',
      'nothing to do\n',
      'nothing to do\n',
    ])
  })

  test('that skipped would let the app start before the migration is done', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const skipping = { ...initContainer, args: initContainer.args.toSpliced(2, 2, '--on-conflict', 'skip') }
    const pods = startAll(skipping, database)
    const early = await Promise.any(pods.map((pod) => pod.closed))
    expect(early).toMatchObject({ code: 0, stdout: '' })
    expect(await database.query(`select from pg_tables where tablename = 'accounts'`)).toEqual([])
    await gate.open()
    await Promise.all(pods.map((pod) => pod.closed))
  })

  test('without the lease would collide', async () => {
    const database = await freshDatabase()
    const gate = await closeGate(database)
    const env = app.environment({ DATABASE_URL: database.url })
    const both = [1, 2].map(() => runProgram(['node', 'migrate.js'], { cwd: app.folder, env }))
    await gate.isReachedBy(2)
    await gate.open()
    const ended = await Promise.all(both)
    expect(ended.filter(({ code }) => code === 0)).toHaveLength(1)
    expect(ended.find(({ code }) => code !== 0)?.stderr).toContain('already exists')
  })
})

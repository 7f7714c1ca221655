import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { promisify } from 'node:util'

const run = promisify(execFile)
const image = 'postgres:18'
const label = 'fencepost.test-run'

export interface ContainerServer {
  /** Connection URL of a superuser. */
  readonly url: string
  stop(): Promise<void>
}

/**
 * Says why no container can be started, or undefined when one can. Asking for the image answers both questions
 * at once. Only a local image counts: where no registry is reachable, a pull may hang instead of failing.
 */
async function containerEngineReason(): Promise<string | undefined> {
  try {
    await docker(5_000, 'image', 'inspect', '--format', '{{.Id}}', image)
    return undefined
  } catch (error) {
    if (!(error instanceof Error)) return String(error)
    if ('code' in error && error.code === 'ENOENT') return 'the docker command is not installed'
    if ('killed' in error && error.killed === true) return 'the Docker engine does not answer'
    const said = 'stderr' in error ? String(error.stderr).trim() : error.message
    if (/no such (image|object)/i.test(said)) return `there is no local image ${image}`
    return said.split('\n').at(-1) ?? said
  }
}

/** Starts PostgreSQL in a container, or prints why it cannot be and returns undefined. */
export async function startContainerServer(): Promise<ContainerServer | undefined> {
  const reason = await containerEngineReason()
  if (reason !== undefined) {
    console.log(`container tests are skipped: ${reason}`)
    return undefined
  }
  // The reaper is an image of its own that would have to be pulled. Without it, this module removes what it
  // started, also when the start fails half-way, and finds that by the label.
  process.env['TESTCONTAINERS_RYUK_DISABLED'] = 'true'
  const testRun = randomUUID()
  // Loading the library takes a noticeable part of a second, which runs without containers need not spend.
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql')
  try {
    const container = await new PostgreSqlContainer(image)
      .withLabels({ [label]: testRun })
      .withCommand(['postgres', '-c', 'fsync=off', '-c', 'max_connections=800'])
      .withStartupTimeout(60_000)
      .start()
    return {
      url: container.getConnectionUri(),
      async stop() {
        await container.stop({ remove: true, removeVolumes: true })
      },
    }
  } catch (error) {
    // A server that dies at its start is reported as a timeout only, so its own words come first.
    for (const id of await containersOf(testRun)) {
      const logs = await docker(10_000, 'logs', '--tail', '20', id).catch(() => undefined)
      if (logs !== undefined) console.error(`${logs.stdout}${logs.stderr}`)
      await docker(30_000, 'rm', '--force', '--volumes', id).catch(() => undefined)
    }
    throw error
  }
}

async function containersOf(testRun: string): Promise<string[]> {
  const listed = await docker(
    10_000,
    'ps',
    '--all',
    '--quiet',
    '--filter',
    `label=${label}=${testRun}`,
  ).catch(() => undefined)
  return listed === undefined ? [] : listed.stdout.split('\n').filter((id) => id !== '')
}

function docker(timeout: number, ...args: string[]): Promise<{ stdout: string; stderr: string }> {
  return run('docker', args, { timeout, killSignal: 'SIGKILL' })
}

import { execFile } from 'node:child_process'
import { cp, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { PackedApp } from './packed-app.ts'

const execute = promisify(execFile)

const base = 'postgres:18'

/** Where the stand-in has what the network would give to `npm ci`. */
const offline = '/opt/npm'

/**
 * Stands in for node:24-slim where that cannot be pulled: the image of the tests' PostgreSQL for a shell and its programs,
 * with the Node and the npm of these tests, the user that the real one has, and npm's cache. Its STOPSIGNAL is another
 * than the real one's, so what is built on it has to name its own.
 */
const standIn = `
FROM ${base}
COPY . /
RUN cd /opt/libraries && for one in *; do \\
      [ -e "/lib/x86_64-linux-gnu/$one" ] || [ -e "/lib64/$one" ] || cp "$one" /usr/local/lib/; \\
    done; \\
    { [ -e /usr/bin/env ] || ln -s /bin/env /usr/bin/env; } && \\
    mkdir -p /home/node && chown 1000:1000 /home/node && \\
    echo 'node:x:1000:1000::/home/node:/bin/sh' >>/etc/passwd && echo 'node:x:1000:' >>/etc/group && \\
    ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
ENV LD_LIBRARY_PATH=/usr/local/lib npm_config_cache=${offline}/cache npm_config_offline=true npm_config_update_notifier=false
USER root
ENTRYPOINT []
CMD ["node"]
`

/** The image of examples/Dockerfile, built from examples/app. */
export class ExampleImage {
  readonly #packed = new PackedApp()
  readonly #tag = `fencepost-example:${process.pid}`
  readonly #baseTag = `fencepost-example-base:${process.pid}`
  #folder = ''

  get tag(): string {
    return this.#tag
  }

  /** Why it cannot be built. */
  get missing(): string | undefined {
    return this.#packed.missing
  }

  async build(dockerfile: string): Promise<void> {
    await this.#packed.create()
    if (this.missing !== undefined) return
    this.#folder = await mkdtemp(join(tmpdir(), 'fencepost-image-'))
    await this.#buildBase(join(this.#folder, 'base'))
    const context = join(this.#folder, 'app')
    await this.#packed.copyTo(context, `${offline}/fencepost.tgz`)
    await build(context, this.#tag, '--file', dockerfile, '--build-arg', `BASE=${this.#baseTag}`)
  }

  async remove(): Promise<void> {
    await docker('rmi', '--force', this.#tag, this.#baseTag).catch(() => undefined)
    if (this.#folder !== '') await rm(this.#folder, { recursive: true, force: true })
    await this.#packed.remove()
  }

  async #buildBase(context: string): Promise<void> {
    const bin = join(context, 'usr/local/bin')
    await mkdir(bin, { recursive: true })
    await cp(process.execPath, join(bin, 'node'))
    const { stdout } = await execute('ldd', [process.execPath])
    for (const [, library] of stdout.matchAll(/=> (\/\S+)/g)) {
      await cp(await realpath(library!), join(context, 'opt/libraries', basename(library!)))
    }
    const npm = dirname(dirname(await realpath(await which('npm'))))
    await cp(npm, join(context, 'usr/local/lib/node_modules/npm'), { recursive: true })
    await cp(this.#packed.cache, join(context, offline, 'cache'), { recursive: true })
    await cp(this.#packed.tarball, join(context, offline, 'fencepost.tgz'))
    await writeFile(join(context, 'Dockerfile'), standIn)
    await build(context, this.#baseTag)
  }
}

async function which(program: string): Promise<string> {
  const { stdout } = await execute('sh', ['-c', `command -v ${program}`])
  return stdout.trim()
}

async function build(context: string, tag: string, ...options: string[]): Promise<void> {
  // The builder that needs no plugin, because the engine of the tests may have none.
  const env = { ...process.env, DOCKER_BUILDKIT: '0' }
  const args = ['build', '--quiet', '--force-rm', '--network', 'none', '--tag', tag, ...options, context]
  try {
    await execute('docker', args, { env, timeout: 120_000, killSignal: 'SIGKILL' })
  } catch (error) {
    if (error instanceof Error && 'stdout' in error) error.message += `\n${String(error.stdout)}`
    throw error
  }
}

/** Why no image can be built, or undefined when one can: it takes an engine, and the tests' PostgreSQL to build on. */
export async function buildReason(): Promise<string | undefined> {
  try {
    await execute('docker', ['image', 'inspect', base], { timeout: 5000, killSignal: 'SIGKILL' })
    return undefined
  } catch (error) {
    if (!(error instanceof Error)) return String(error)
    if ('code' in error && error.code === 'ENOENT') return 'the docker command is not installed'
    const said = 'stderr' in error ? String(error.stderr).trim() : ''
    return said === '' ? 'the Docker engine does not answer' : said.split('\n').at(-1)!
  }
}

/** What a command of docker prints. */
export async function docker(...args: string[]): Promise<string> {
  const { stdout } = await execute('docker', args, { timeout: 60_000, killSignal: 'SIGKILL' })
  return stdout.trim()
}

import { execFile, execFileSync } from 'node:child_process'
import { existsSync, readFileSync, readdirSync, rmdirSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { onTestFinished } from 'vitest'
import { eventually } from './cli.ts'
import { Program } from './program.ts'
import { namespaces, shopHost } from './shop-host.ts'

const systemd = '/lib/systemd/systemd'
/** The number of the user `shop`, who exists under this systemd only. */
const user = '64711'

/** Where the unified hierarchy of control groups is mounted; undefined where it is not. */
function controlGroups(): string | undefined {
  return /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/mounts', 'utf8'))?.[1]
}

/** Why systemd cannot be run here, or undefined when it can. */
export function systemdReason(): string | undefined {
  if (!existsSync(systemd)) return 'systemd is not installed'
  if (controlGroups() === undefined) return 'there is no unified hierarchy of control groups'
  try {
    execFileSync('unshare', [...namespaces, 'mount', '-t', 'cgroup2', 'cgroup2', '/sys/fs/cgroup'], {
      stdio: 'ignore',
    })
  } catch {
    return 'no file systems can be mounted in a namespace of their own'
  }
  try {
    const as = [`--reuid=${user}`, `--regid=${user}`, '--clear-groups']
    execFileSync('setpriv', [...as, process.execPath, '--version'], { stdio: 'ignore' })
    return undefined
  } catch {
    return 'another user cannot run the Node of this checkout'
  }
}

const script = `
scratch=$1 app=$2 node=$3 units=$4
${shopHost}
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo shop:x:${user}:${user}::/srv/shop:/bin/sh >>/etc/passwd
echo shop:x:${user}: >>/etc/group
export container=other SYSTEMD_UNIT_PATH="$units" SYSTEMD_GENERATOR_PATH=/nonexistent
exec ${systemd} --system --unit=idle.target --show-status=no --log-target=console
`

/** What every unit depends on without saying so, with nothing behind it. */
const targets = ['idle', 'sysinit', 'basic', 'shutdown', 'timers', 'time-set', 'time-sync', 'network-online']

/** systemd itself as the first process of a namespace and of a control group, with units of the test's and no others. */
export class Systemd {
  readonly #pid: number
  readonly #output: string

  private constructor(pid: number, output: string) {
    this.#pid = pid
    this.#output = output
  }

  /** `app` is what is to be found as /srv/shop, and what the units print is kept. */
  static async start(app: string, units: Readonly<Record<string, string>>): Promise<Systemd> {
    const folder = await mkdtemp(join(tmpdir(), 'fencepost-systemd-'))
    onTestFinished(() => rm(folder, { recursive: true, force: true }))
    const [scratch, unitFolder, output] = ['scratch', 'units', 'output'].map((name) => join(folder, name))
    await mkdir(scratch!)
    await mkdir(unitFolder!)
    for (const name of targets) {
      await writeFile(join(unitFolder!, `${name}.target`), '[Unit]\nDefaultDependencies=no\n')
    }
    for (const [name, text] of Object.entries(units)) {
      await writeFile(join(unitFolder!, name), text)
      if (!name.endsWith('.service')) continue
      await mkdir(join(unitFolder!, `${name}.d`))
      const kept = `[Service]\nStandardOutput=append:${output}\nStandardError=append:${output}\n`
      await writeFile(join(unitFolder!, `${name}.d/output.conf`), kept)
    }
    const group = join(controlGroups()!, `fencepost-test-${process.pid}`)
    await mkdir(group)
    onTestFinished(() => eventually(() => isRemoved(group)))
    const enter = `echo $$ >${group}/cgroup.procs && exec unshare --cgroup --ipc --uts "$@"`
    const args = ['sh', '-c', script, 'sh', scratch!, app, process.execPath, unitFolder!]
    const env = { PATH: process.env['PATH']! }
    const program = new Program(['sh', '-c', enter, 'sh', ...namespaces, ...args], { env })
    const firstProcess = (): number =>
      Number(readFileSync(`/proc/${program.pid}/task/${program.pid}/children`, 'latin1'))
    await eventually(() => firstProcess() > 0)
    const started = new Systemd(firstProcess(), output!)
    await eventually(() => started.systemctl('is-system-running').then(isTrue, isFalse))
    return started
  }

  /** The number of the user "shop", as whom the service runs. */
  readonly shopUser = user

  /** What the command prints. Fails as it does. */
  async systemctl(...args: string[]): Promise<string> {
    const enter = ['--target', String(this.#pid), '--mount', '--pid', 'systemctl', '--no-pager']
    const { stdout } = await promisify(execFile)('nsenter', [...enter, ...args])
    return stdout.trim()
  }

  /** What has become of a unit: these of its properties. */
  async show(unit: string, ...properties: string[]): Promise<Record<string, string>> {
    const shown = await this.systemctl('show', unit, `--property=${properties.join(',')}`)
    const pairs = shown.split('\n').map((line) => line.split(/=(.*)/s, 2))
    return Object.fromEntries(pairs) as Record<string, string>
  }

  /** What the services have printed. */
  async output(): Promise<string> {
    return existsSync(this.#output) ? readFile(this.#output, 'utf8') : ''
  }
}

const isTrue = (): boolean => true
const isFalse = (): boolean => false

/** A control group can be removed when the last process of it has gone. */
function isRemoved(group: string): boolean {
  try {
    for (const entry of readdirSync(group, { withFileTypes: true })) {
      if (entry.isDirectory()) isRemoved(join(group, entry.name))
    }
    rmdirSync(group)
  } catch {
    // Not yet.
  }
  return !existsSync(group)
}

import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { eventually } from './cli.ts'
import { Program } from './program.ts'
import { namespaces, shopHost } from './shop-host.ts'

const cron = '/usr/sbin/cron'

/** Why Debian's cron cannot be run here, or undefined when it can. */
export function cronReason(): string | undefined {
  if (!existsSync(cron)) return 'cron is not installed'
  try {
    execFileSync('unshare', [...namespaces, 'mount', '-t', 'tmpfs', 'tmpfs', '/run'], { stdio: 'ignore' })
    return undefined
  } catch {
    return 'no file systems can be mounted in a namespace of their own'
  }
}

/** What cron mails goes to a file. Its marks of what it has run are in /run, so it takes every start for that of the machine. */
const script = `
scratch=$1 app=$2 node=$3 mails=$4 crontab=$5
${shopHost}
printf '#!/bin/sh\\ncat >"%s/$$.part" && mv "%s/$$.part" "%s/$$"\\n' "$mails" "$mails" "$mails" >/usr/sbin/sendmail
chmod 755 /usr/sbin/sendmail
mount -t tmpfs tmpfs /var/spool
mkdir -p /var/spool/cron/crontabs
cp "$crontab" /var/spool/cron/crontabs/root
chmod 600 /var/spool/cron/crontabs/root
rm -f /etc/crontab /etc/cron.d/*
exec ${cron} -f
`

/** Debian's cron, with a crontab of root's. */
export class Cron {
  readonly #program: Program
  readonly #mails: string

  private constructor(program: Program, mails: string) {
    this.#program = program
    this.#mails = mails
  }

  /** `app` is what is to be found as /srv/shop. The crontab's time may be `@reboot`: then its jobs start at once. */
  static async start(app: string, crontab: string): Promise<Cron> {
    const folder = await mkdtemp(join(tmpdir(), 'fencepost-cron-'))
    onTestFinished(() => rm(folder, { recursive: true, force: true }))
    const [scratch, mails, file] = ['scratch', 'mails', 'crontab'].map((name) => join(folder, name))
    await mkdir(scratch!)
    await mkdir(mails!)
    await chmod(folder, 0o755)
    await writeFile(file!, crontab)
    const args = ['sh', '-c', script, 'sh', scratch!, app, process.execPath, mails!, file!]
    const program = new Program(['unshare', ...namespaces, ...args], { env: { PATH: process.env['PATH']! } })
    return new Cron(program, mails!)
  }

  /** Waits until nothing of what it has started is left. */
  async isIdle(): Promise<void> {
    const childrenOf = (pid: number): string =>
      readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').trim()
    await eventually(() => childrenOf(Number(childrenOf(this.#program.pid))) === '')
  }

  /** The mails it has sent. */
  async mails(): Promise<string[]> {
    const names = (await readdir(this.#mails)).filter((name) => !name.endsWith('.part'))
    return Promise.all(names.map((name) => readFile(join(this.#mails, name), 'utf8')))
  }
}

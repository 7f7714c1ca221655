import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, open, rm, rmdir, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

const execute = promisify(execFile)

/** Mounts, says so, and unmounts when its input ends: whoever holds the other end may be killed at any time. */
const keeper = `
  mount -t tmpfs -o "$2" fencepost-torture "$1" || exit 1
  trap '' INT TERM HUP
  echo mounted
  cat >/dev/null
  umount "$1" 2>/dev/null || umount -l "$1"
  rmdir "$1"`

/**
 * A file system in memory that can be filled up. It is unmounted when this process ends, whatever ends it; what is open then stays until it
 * is closed.
 */
export class SmallDisk {
  readonly path: string
  readonly #keeper: ChildProcess

  private constructor(path: string, keeping: ChildProcess) {
    this.path = path
    this.#keeper = keeping
  }

  /** Why there can be none here; undefined when there can. */
  static async reason(): Promise<string | undefined> {
    if (process.platform !== 'linux') return 'a file system to be filled up is mounted on Linux only'
    if (process.getuid?.() !== 0) return 'only root may mount a file system to be filled up'
    try {
      // In a namespace of its own, which is gone with the command: nothing to clear away.
      await execute('unshare', ['--mount', 'mount', '-t', 'tmpfs', '-o', 'size=64k', 'probe', '/mnt'])
      return undefined
    } catch (error) {
      return `a file system to be filled up cannot be mounted: ${(error as Error).message.trim()}`
    }
  }

  /** It belongs to the owner of `likeThat`. The folder `path` is made for it, and removed after it. */
  static async mount(path: string, bytes: number, likeThat: string): Promise<SmallDisk> {
    await mkdir(path)
    const { uid, gid } = await stat(likeThat)
    const options = `size=${bytes},mode=0700,uid=${uid},gid=${gid}`
    // Detached: a Ctrl-C in the terminal is not for it.
    const child = spawn('sh', ['-c', keeper, 'sh', path, options], {
      detached: true,
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    const [said] = await Promise.race([once(child.stdout, 'data'), once(child, 'exit')])
    if (String(said).trim() !== 'mounted') {
      await rmdir(path)
      throw new Error(`no file system could be mounted on ${path}`)
    }
    child.unref()
    return new SmallDisk(path, child)
  }

  /** Takes all that is left, but for `spare` bytes. */
  async fill(spare = 0): Promise<void> {
    const file = await open(this.#filler, 'a')
    try {
      const { bavail, bsize } = await statfs(this.path)
      let left = bavail * bsize - spare
      while (left > 0) {
        const size = Math.min(left, 1 << 20)
        // oxlint-disable-next-line no-await-in-loop -- One piece after the other.
        left -= (await file.write(Buffer.alloc(size))).bytesWritten
      }
    } catch (error) {
      // Somebody else has taken what was left.
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
    } finally {
      await file.close()
    }
  }

  async free(): Promise<void> {
    await rm(this.#filler, { force: true })
  }

  async unmount(): Promise<void> {
    const gone = once(this.#keeper, 'exit')
    this.#keeper.ref()
    this.#keeper.stdin!.end()
    await gone
  }

  get #filler(): string {
    return join(this.path, 'filler')
  }
}

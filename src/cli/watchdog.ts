import { type ChildProcess, spawn } from 'node:child_process'

/**
 * Waits for the end of its standard input, which comes when the wrapper is gone, however it went. Until then it is told:
 * `starting` and what the command has in its environment; `watch` and its number, which is that of its session too;
 * `ending` (it has its TERM already, so it gets no grace any more); and `over` (nothing is left to end).
 *
 * $1 is the grace in steps of 0.1 s, $2 what to end: the whole session of the command or, when it has none of its own, the
 * command and what descends from it. Groups are looked for in /proc, in the shell itself; where there is none, the
 * command's group has to do. A wrapper that is killed just when it starts the command leaves its number untold: then it
 * is looked for by its environment, whose mark is a secret and so is no argument of grep.
 */
const script = `
roots= mark= steps=$1 kind=$2
while read -r word what; do
  case $word in over) exit 0 ;; ending) steps=0 ;; starting) mark=$what ;; watch) roots=$what ;; esac
done
[ -n "$mark" ] || exit 0
if [ -z "$roots" ]; then
  sleep 0.1
  for environ in $(echo "$mark" | grep -lF -f - /proc/[0-9]*/environ); do
    read -r line <"\${environ%environ}stat" || continue
    set -- \${line##*) }
    if [ "$kind" = tree ]; then roots="$roots \${line%% *}"; else roots=$4; fi
  done
fi
groups() {
  [ -r /proc/self/stat ] || { kill -s 0 -- "-$root" && echo "-$root"; return; }
  for stat in /proc/[0-9]*/stat; do
    read -r line <"$stat" || continue
    set -- \${line##*) }
    [ "$4" = "$root" ] && [ "$1" != Z ] && echo "-$3"
  done
}
tree() {
  known=" $roots " size=
  until [ "$size" = "$known" ]; do
    size=$known
    for stat in /proc/[0-9]*/stat; do
      read -r line <"$stat" || continue
      set -- \${line##*) }
      case $known in *" \${line%% *} "*) continue ;; esac
      case $known in *" $2 "*) known="$known\${line%% *} " ;; esac
    done
  done
  echo "$known"
}
tell() { for one in $2; do kill -s "$1" -- "$one"; done; }
[ -n "$roots" ] || exit 0
if [ "$kind" = tree ]; then tell KILL "$(tree)"; exit; fi
root=$roots
tell TERM "$(groups)"
tell CONT "$(groups)"
while [ "$steps" -gt 0 ] && [ -n "$(groups)" ]; do sleep 0.1 || break; steps=$((steps - 1)); done
for again in 1 2 3; do tell KILL "$(groups)"; done
`

/** A step is 0.1 s and what it takes to look around; so the grace is not overrun on a busy machine. */
const stepMs = 150

/**
 * Ends the command when this process is killed. Node cannot ask the kernel for that, so a shell of a few hundred kilobytes
 * waits for it, in a session of its own, where what is sent to this process's group does not reach it. It takes no longer than
 * the grace, for which the lease is still held: a live wrapper sends TERM when no more than that is left.
 *
 * Not covered: a wrapper that is stopped, and a watchdog that is killed as well. Then only the fence protects.
 */
export class Watchdog {
  readonly #child: ChildProcess

  constructor(options: { readonly graceMs: number; readonly isSession: boolean }) {
    const steps = Math.floor(options.graceMs / stepMs)
    const kind = options.isSession ? 'session' : 'tree'
    const args = ['-c', script, 'fencepost-watchdog', String(steps), kind]
    this.#child = spawn('/bin/sh', args, { stdio: ['pipe', 'ignore', 'ignore'], detached: true })
    // Without a shell, and when it is killed, there is no watchdog; the command is none the worse for it.
    this.#child.on('error', () => {})
    this.#child.stdin!.on('error', () => {})
    this.#child.unref()
  }

  /** A command with this in its environment is about to be started, and is not to outlive this process. */
  starting(mark: string): void {
    this.#tell(`starting ${mark}`)
  }

  /** The command has been started. */
  watch(command: number): void {
    this.#tell(`watch ${command}`)
  }

  /** The command has got its TERM. */
  ending(): void {
    this.#tell('ending')
  }

  /** Nothing is left to be ended. */
  over(): void {
    this.#tell('over')
    this.#child.stdin!.end()
  }

  #tell(word: string): void {
    if (this.#child.stdin!.writable) this.#child.stdin!.write(`${word}\n`)
  }
}

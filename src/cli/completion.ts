import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { durationMs } from '../duration.ts'
import { Invocation } from './commands/invocation.ts'
import { buildProgram } from './commands/program.ts'
import { bashReplies, readLine } from './completion-bash.ts'
import { type AskNames, type Candidate, candidates } from './completion-candidates.ts'
import { completionScripts } from './completion-script.ts'
import type { CompletionShell } from './completion-shells.ts'
import { exitCode } from './exit-code.ts'

/** Somebody waits at a prompt. It counts from the start of this process, except for what the database needs at least. */
const answerWithinMs = 1000
const askForMs = 400
const mostMs = 60_000

export async function runCompletion(
  shell: CompletionShell,
  options: { readonly answer?: boolean },
): Promise<number> {
  process.stdout.write(options.answer === true ? await answer(shell) : completionScripts[shell])
  return exitCode.done
}

/** One candidate a line: what the shell is to insert and, for shells that show it, a tab and a description. */
async function answer(shell: CompletionShell): Promise<string> {
  const typed = (await text(process.stdin)).split('\0').slice(0, -1)
  const program = await buildProgram(new Invocation([]))
  if (shell === 'bash') {
    const [wordBreaks = '', line = ''] = typed
    const { words, current } = readLine(line, wordBreaks)
    const found = await candidates(program, words.slice(1), current.value, askInTime)
    return lines(
      bashReplies(
        found.map(({ value }) => value),
        current,
      ),
    )
  }
  const found = await candidates(program, typed.slice(0, -1), typed.at(-1) ?? '', askInTime)
  return lines(found.map(shownLine))
}

function shownLine({ value, description }: Candidate): string {
  return description === undefined ? value : `${value}\t${description}`
}

function lines(list: readonly string[]): string {
  return list.map((line) => `${line}\n`).join('')
}

/** Whatever goes wrong with the database, there are no names, and not a word about it: the prompt is somebody's. */
const askInTime: AskNames = async (query) => {
  try {
    const wait = process.env['FENCEPOST_COMPLETION_WAIT'] || answerWithinMs
    const dueMs = durationMs('FENCEPOST_COMPLETION_WAIT', wait, { minMs: 0, maxMs: mostMs })
    const withinMs = Math.max(askForMs, Math.round(dueMs - performance.now()))
    const { leaseNames } = await import('./completion-names.ts')
    return await Promise.race([leaseNames(query, withinMs), sleep(withinMs, [])])
  } catch {
    return []
  }
}

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type Server, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { bashReplies, readLine } from '../../src/cli/completion-bash.ts'
import { completionScripts } from '../../src/cli/completion-script.ts'
import { type CompletionShell, completionShells } from '../../src/cli/completion-shells.ts'
import { Cli, eventually, runCli } from '../support/cli.ts'
import { useDatabase } from '../support/database.ts'
import { hasTerminal } from '../support/terminal.ts'

const database = useDatabase()
const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'fencepost-completion-'))
const proof = join(folder, 'was-run')

/** Names that a shell would tear or run, each by a beginning that is its alone: what is typed, and how it goes on. */
const names = [
  ['my', 'my lease'],
  ['cost', 'cost$HOME'],
  ['run-', `run-$(touch ${proof})`],
  ['tick', `tick\`touch ${proof}\``],
  ['semi', `semi;touch ${proof}`],
  ['its', "its'own"],
  ['say', 'say"hi"'],
  ['both', `both'"$x`],
  ['bang', 'bang!x !1'],
  ['star', 'star*?[a]{b,c}'],
  ['ends', `ends'`],
  ['quits', 'quits"'],
  ['back', String.raw`back\slash`],
  ['home', 'home~/x#y'],
  ['gr', 'größe 長い'],
  ['colon', 'colon:a b:c'],
  ['equal', 'equal=a b'],
  ['at', 'at@x&|<>()^'],
] as const

const env = (): Record<string, string> => ({
  ...Object.fromEntries(
    Object.entries(process.env).filter(
      ([name]) => !/^(FENCEPOST_|PG|DATABASE_URL$|NODE_OPTIONS$|BASH_ENV$|ENV$|PS1$|PROMPT)/.test(name),
    ) as [string, string][],
  ),
  PATH: `${folder}:${process.env['PATH']}`,
  HOME: folder,
  LC_ALL: 'C.UTF-8',
  TERM: 'dumb',
  DATABASE_URL: database.url,
  // Where the processors are busy, no name is left out.
  FENCEPOST_COMPLETION_WAIT: '30s',
})

const noTerminal = 'there is no terminal: it takes script of util-linux'
const isThere = (shell: CompletionShell): boolean => spawnSync(shell, ['--version']).status === 0

beforeAll(async () => {
  // It completes as fencepost does; whatever else it is called with, it shows.
  const program = join(folder, 'fencepost')
  writeFileSync(
    program,
    `#!/bin/sh\n[ "$1" = completion ] && exec '${process.execPath}' '${main}' "$@"\nprintf 'GOT'; printf '<%s>' "$@"; echo .\n`,
  )
  chmodSync(program, 0o755)
  for (const name of [...names.map(([, whole]) => whole), '-dash', 'two a', 'two b', 'fork one', 'fork$two'])
    await database.query(
      `insert into fencepost.lease (name, token, granted_at, sequence) values ($1, 1, now(), 'default')`,
      [name],
    )
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** How a shell without its owner's settings is started, and how it gets the script. */
const starts: Readonly<Record<CompletionShell, { command: string; setUp: string }>> = {
  bash: {
    command: 'bash --norc --noprofile -i',
    setUp: `PS1='ready> '; bind 'set enable-bracketed-paste off'; source <(fencepost completion bash); set -o history -H`,
  },
  zsh: {
    command: 'zsh -f -i',
    setUp: `PS1='ready> '; unsetopt PROMPT_SP; autoload -Uz compinit && compinit -u -D; source <(fencepost completion zsh)`,
  },
  fish: {
    command: 'fish --no-config -i',
    setUp: `function fish_prompt; echo -n 'ready> '; end; fencepost completion fish | source`,
  },
}

/** A shell on a terminal of its own: what is typed is what somebody types. */
class Shell {
  readonly #child: ChildProcess
  #shown = ''

  private constructor(shell: CompletionShell) {
    this.#child = spawn('script', ['-qec', starts[shell].command, '/dev/null'], { env: env(), stdio: 'pipe' })
    this.#child.stdout!.setEncoding('utf8').on('data', (text: string) => (this.#shown += text))
    this.#child.stdin!.on('error', () => {})
    onTestFinished(() => void this.#child.kill('SIGKILL'))
  }

  static async start(shell: CompletionShell): Promise<Shell> {
    const started = new Shell(shell)
    started.type(`${starts[shell].setUp}; echo SET-''UP\n`)
    await eventually(() => started.#shown.includes('SET-UP'))
    return started
  }

  type(keys: string): void {
    this.#child.stdin!.write(keys)
  }

  /** What fencepost is called with when this has been typed, and Enter. */
  async call(keys: string): Promise<string> {
    const before = this.#shown.length
    this.type(`${keys}\n`)
    const got = (): string | undefined => /GOT(.*)\.\r?\n/.exec(this.#shown.slice(before))?.[1]
    try {
      await eventually(() => got() !== undefined)
    } catch (error) {
      throw new Error(`after ${JSON.stringify(keys)}: ${JSON.stringify(this.#shown.slice(before))}`, {
        cause: error,
      })
    }
    return got()!
  }
}

describe.for(completionShells)('in %s', (shell) => {
  const reason = isThere(shell) ? (hasTerminal ? undefined : noTerminal) : `${shell} is not installed`

  test('names are completed so that the command gets them as they are', async ({ skip }) => {
    skip(reason !== undefined, reason)
    const terminal = await Shell.start(shell)
    for (const [typed, whole] of names)
      expect(await terminal.call(`fencepost show ${typed}\t`)).toBe(`<show><${whole}>`)
    expect(existsSync(proof)).toBe(false)
  })

  test.for([`'`, '"'])('also behind a quote that is open: %s', async (quote, { skip }) => {
    skip(reason !== undefined, reason)
    const terminal = await Shell.start(shell)
    // The others quote by themselves.
    for (const [typed, whole] of shell === 'bash' ? names : names.slice(0, 8))
      expect(await terminal.call(`fencepost show ${quote}${typed}\t`)).toBe(`<show><${whole}>`)
    expect(existsSync(proof)).toBe(false)
  })

  test('a name that begins with a dash comes behind "--"', async ({ skip }) => {
    skip(reason !== undefined, reason)
    const terminal = await Shell.start(shell)
    expect(await terminal.call('fencepost show -- -d\t')).toBe('<show><--><-dash>')
  })

  test('commands, options and their values are completed', async ({ skip }) => {
    skip(reason !== undefined, reason)
    const terminal = await Shell.start(shell)
    for (const [typed, called] of [
      ['rel\tmy\t', '<release><my lease>'],
      ['ls --so\tsi\t', '<ls><--sort><since>'],
      ['ls --sort=to\t', '<ls><--sort=token>'],
      ['ls --state held,dr\t', '<ls><--state><held,draining>'],
      ['run my\t--on\tsk\t', '<run><my lease><--on-conflict><skip>'],
      ['local stat\t', '<local><status>'],
      ['help raise\t', '<help><raise-tokens>'],
      ['protect t --lease its\t', "<protect><t><--lease><its'own>"],
    ] as const)
      expect(await terminal.call(`fencepost ${typed}`)).toBe(called)
  })

  test('behind "--" of run the command is completed as if it stood alone', async ({ skip }) => {
    skip(reason !== undefined, reason)
    writeFileSync(join(folder, 'a file'), '')
    const terminal = await Shell.start(shell)
    expect(await terminal.call(`fencepost run x -- fencepo\tls`)).toBe('<run><x><--><fencepost><ls>')
    expect(await terminal.call(`fencepost run x -- cat ${folder}/a\\ f\t`)).toBe(
      `<run><x><--><cat><${folder}/a file>`,
    )
    // Its own completion too, where it has one: here that of fencepost.
    if (shell !== 'bash')
      expect(await terminal.call('fencepost run x -- fencepost show my\t')).toBe(
        '<run><x><--><fencepost><show><my lease>',
      )
  })

  test('the script evaluates nothing', () => {
    expect(completionScripts[shell]).not.toMatch(/\beval\b/)
  })
})

describe('bash', () => {
  /** As bash itself calls the function: by the words, the line and the cursor. */
  function replies(line: string, more: Record<string, string> = {}): string[] {
    const script = `source <(fencepost completion bash)
      COMP_LINE=$1 COMP_POINT=\${#1}; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
      _fencepost fencepost; printf '%s\\0' "\${COMPREPLY[@]}"`
    const words = line.split(' ')
    const { stdout, stderr } = spawnSync('bash', ['--norc', '-c', script, 'bash', line, ...words], {
      env: { ...env(), ...more },
      encoding: 'utf8',
    })
    expect(stderr).toBe('')
    return stdout.split('\0').filter(Boolean)
  }

  test.skipIf(!isThere('bash'))('is given quoted names by COMP_WORDS and COMP_CWORD', () => {
    expect(replies('fencepost show two')).toEqual([String.raw`two\ a`, String.raw`two\ b`])
    expect(replies("fencepost show 'two")).toEqual(['two a', 'two b'])
    expect(replies('fencepost show colon:')).toEqual([String.raw`a\ b:c`])
    expect(replies('fencepost run two a')).toEqual([])
    expect(replies('fencepost run my --')).toContain('--wait')
    expect(replies('fencepost run my ')[0]).toBe('--')
    expect(replies('fencepost run my -- fencepos')).toContain('fencepost')
  })

  test.skipIf(!isThere('bash'))('what two names have in common never ends within an escape', () => {
    expect(replies('fencepost show for')).toEqual(["'fork one'", "'fork$two'"])
    const inDouble = bashReplies(['a"b', 'a$c'], readLine('x "a', '').current)
    expect(inDouble).toEqual([String.raw`a\"b`, String.raw`a\$c`])
  })

  test.each([
    ['fencepost show ', ['fencepost', 'show'], '', ''],
    [String.raw`fencepost show a\ b`, ['fencepost', 'show'], 'a b', ''],
    [`fencepost show 'a b' "c $x" d`, ['fencepost', 'show', 'a b', 'c $x'], 'd', ''],
    [`fencepost show "a\\"b\\x`, ['fencepost', 'show'], 'a"b\\x', '"'],
    [`fencepost show a'b c`, ['fencepost', 'show'], 'ab c', "'"],
    ['fencepost show $(touch x)', ['fencepost', 'show', '$(touch'], 'x)', ''],
    ['fencepost show \\', ['fencepost', 'show'], '', ''],
  ])('%s is read as words, and not run', (line, words, value, quote) => {
    expect(readLine(line, ' \t\n"\'@><=;|&(:')).toMatchObject({ words, current: { value, quote } })
  })

  test.skipIf(!isThere('bash') || !existsSync('/usr/share/bash-completion/bash_completion') || !hasTerminal)(
    'with the package bash-completion, the command behind "--" has its own completion',
    async () => {
      const terminal = await Shell.start('bash')
      terminal.type('source /usr/share/bash-completion/bash_completion\n')
      expect(await terminal.call('fencepost run x -- fencepost show my\t')).toBe(
        '<run><x><--><fencepost><show><my lease>',
      )
    },
  )
})

describe.skipIf(!isThere('fish'))('fish', () => {
  const shell: CompletionShell = 'fish'

  test('offers candidates with what they mean', () => {
    const ask = (line: string): string[] =>
      spawnSync(shell, ['--no-config', '-c', `fencepost completion fish | source; complete -C '${line}'`], {
        env: env(),
        encoding: 'utf8',
      })
        .stdout.trim()
        .split('\n')
    expect(ask('fencepost ')).toContain('doctor\tfind what breaks the wall, and how to mend it')
    expect(ask('fencepost ls --s')).toContain('--sort\tby name')
    expect(ask('fencepost show two')).toEqual(['two a', 'two b'])
  })
})

describe('names', () => {
  async function namesFor(words: readonly string[], settings: Record<string, string>): Promise<string[]> {
    const cli = new Cli(['completion', 'zsh', '--answer'], {
      env: { FENCEPOST_COMPLETION_WAIT: '30s', ...settings },
    })
    cli.tell(`${words.join('\0')}\0`)
    cli.endInput()
    const { code, stdout, stderr } = await cli.closed
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    return stdout.split('\n').filter(Boolean)
  }
  const show = ['show', 'two']
  const all = ['two a', 'two b']

  test.each([
    ['FENCEPOST_DATABASE_URL', () => ({ words: show, settings: { FENCEPOST_DATABASE_URL: database.url } })],
    ['the line', () => ({ words: ['show', '--database-url', database.url, 'two'], settings: {} })],
    [
      'the line, with "="',
      () => ({ words: ['show', `--database-url=${database.url}`, 'two'], settings: {} }),
    ],
    [
      'a variable on the line',
      () => ({ words: ['show', '--database-url', '$MY_DB', 'two'], settings: { MY_DB: database.url } }),
    ],
  ])('are asked from the database that is named by %s', async (_, given) => {
    const { words, settings } = given()
    expect(await namesFor(words, settings)).toEqual(all)
  })

  test.each([
    ['no database is named', {}],
    ['there is none', { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/x' }],
    ['the URL cannot be read', { DATABASE_URL: 'mysql://x' }],
    ['the PG variables lead nowhere', { PGHOST: '127.0.0.1', PGPORT: '1' }],
    ['the wait is none', { DATABASE_URL: database.url, FENCEPOST_COMPLETION_WAIT: 'soon' }],
  ])('are none, without a word, when %s', async (_, settings) => {
    expect(await namesFor(show, settings as Record<string, string>)).toEqual([])
  })

  test('are none, and soon, when the database does not answer', async () => {
    await using silent = await silentServer()
    const settings = {
      DATABASE_URL: `postgres://x@127.0.0.1:${silent.port}/x`,
      FENCEPOST_COMPLETION_WAIT: '',
    }
    expect(await namesFor(show, settings)).toEqual([])
    expect(silent.visits()).toBe(1)
    // What needs no database is there all the same.
    expect(await namesFor(['release', '--to'], settings)).toHaveLength(1)
    expect(silent.visits()).toBe(1)
  })

  test('are not asked behind "--" of an option that takes no name', async () => {
    expect(await namesFor(['show', '--database-url', ''], { DATABASE_URL: database.url })).toEqual([])
    expect(await namesFor(['release', 'my lease', '--token', ''], { DATABASE_URL: database.url })).toEqual([])
  })

  test('come without the line in the arguments of a process', async () => {
    await using silent = await silentServer()
    const url = `postgres://x:Geheim-4712@127.0.0.1:${silent.port}/x`
    const script = `source <(fencepost completion bash); COMP_LINE=$LINE COMP_POINT=\${#LINE}
      COMP_WORDS=(fencepost show --database-url "$URL" t) COMP_CWORD=4; _fencepost fencepost`
    const child = spawn('bash', ['--norc', '-c', script], {
      env: {
        ...env(),
        LINE: `fencepost show --database-url ${url} t`,
        URL: url,
        FENCEPOST_COMPLETION_WAIT: '',
      },
    })
    const closed = new Promise((resolve) => child.once('close', resolve))
    await eventually(() => silent.visits() > 0)
    const { stdout } = spawnSync('ps', ['-eo', 'args='], { encoding: 'utf8' })
    expect(stdout).toContain('completion bash --answer')
    // Other tests run beside this one, with passwords of their own.
    expect(stdout).not.toContain('Geheim-4712')
    await closed
  })
})

test.each(completionShells)('the script for %s is what the command prints, alone', async (shell) => {
  expect(await runCli(['completion', shell])).toEqual({
    code: 0,
    signal: null,
    stdout: completionScripts[shell],
    stderr: '',
  })
})

test('another shell is wrong usage', async () => {
  const result = await runCli(['completion', 'tcsh'])
  expect(result).toMatchObject({ code: 64, stdout: '' })
  expect(result.stderr).toContain('bash, zsh, fish')
})

/** Takes connections and says nothing. */
async function silentServer(): Promise<AsyncDisposable & { port: number; visits: () => number }> {
  let visits = 0
  const sockets = new Set<{ destroy: () => void }>()
  const server: Server = createServer((socket) => {
    visits++
    sockets.add(socket)
    socket.on('error', () => {})
  })
  const { promise, resolve } = Promise.withResolvers<void>()
  server.listen(0, '127.0.0.1', resolve)
  await promise
  return {
    port: (server.address() as { port: number }).port,
    visits: () => visits,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      const closed = Promise.withResolvers<void>()
      server.close(() => closed.resolve())
      await closed.promise
    },
  }
}

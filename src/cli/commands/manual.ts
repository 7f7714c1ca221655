import type { Command } from 'commander'

/** What the help of a command says after its options. */
export interface Manual {
  /** Paragraphs under a title. An empty line ends a paragraph; what is indented stays as it is. */
  readonly sections?: Readonly<Record<string, string>>
  /** What the command reads beside what names the database, or what it gives to others. */
  readonly environment?: string
  /** Those of its own, beside 64 and what a command that asks the database has. */
  readonly exitCodes?: readonly ExitCode[]
  /** Lines as they are typed; longer ones are broken with a backslash. */
  readonly examples: readonly string[]
}

type ExitCode = readonly [code: string, meaning: string]

/** As wide as a manual is, on wider terminals too. */
const widest = 80

export function helpWidth(): number {
  return Math.min(process.stdout.columns || widest, widest)
}

const anyCommand: readonly ExitCode[] = [['64', 'wrong usage']]
const askingTheDatabase: readonly ExitCode[] = [
  ['1', 'it failed otherwise'],
  ['64', 'wrong usage'],
  ['69', 'the database cannot be used: unreachable, wrong password, no schema, no right'],
]
const databaseNames =
  'FENCEPOST_DATABASE_URL, else DATABASE_URL, else PGHOST and PGDATABASE name the database; "fencepost --help" has the others.'

/** The help of a command that asks no database, or not always. */
export function manual(command: Command, page: Manual): Command {
  return command.addHelpText('after', () => asText(page, anyCommand))
}

/** The help of a command that asks the database. */
export function databaseManual(command: Command, page: Manual): Command {
  const environment =
    page.environment === undefined ? databaseNames : `${databaseNames}\n\n${page.environment}`
  return command.addHelpText('after', () => asText({ ...page, environment }, askingTheDatabase))
}

function asText({ sections = {}, environment, exitCodes = [], examples }: Manual, more: readonly ExitCode[]) {
  const own = new Set(exitCodes.map(([code]) => code))
  const codes = [...exitCodes, ...more.filter(([code]) => !own.has(code))]
  // In their order; those that are no single number come first.
  codes.sort(([a], [b]) => (Number(a) || 0) - (Number(b) || 0))
  const parts = [
    ...Object.entries(sections).map(([title, text]) => section(title, prose(text))),
    ...(environment === undefined ? [] : [section('Environment', prose(environment))]),
    section('Exit codes', terms(codes)),
    section(examples.length === 1 ? 'Example' : 'Examples', examples.map((line) => `  ${line}`).join('\n')),
  ]
  return `\n${parts.join('\n\n')}`
}

function section(title: string, body: string): string {
  return `${title}:\n${body}`
}

export function prose(text: string): string {
  return text
    .trim()
    .split(/\n\s*\n/)
    .map((paragraph) => (/^\s/.test(paragraph) ? paragraph : fold(paragraph, 2, 2)))
    .join('\n\n')
}

/** Terms and what they mean, in two columns. */
export function terms(list: readonly (readonly [term: string, meaning: string])[]): string {
  const column = Math.max(...list.map(([term]) => term.length)) + 4
  return list
    .map(([term, meaning]) => `  ${term}`.padEnd(column) + fold(meaning, 0, column, column))
    .join('\n')
}

/** The text in lines of the help's width. `used` columns of the first are taken. */
function fold(text: string, first: number, rest: number, used = 0): string {
  const width = helpWidth()
  const lines: string[] = []
  let line = ' '.repeat(first)
  for (const word of text.trim().split(/\s+/)) {
    const taken = lines.length === 0 ? used : 0
    if (line.trim() !== '' && taken + line.length + 1 + word.length > width) {
      lines.push(line)
      line = ' '.repeat(rest) + word
    } else {
      line += line.trim() === '' ? word : ` ${word}`
    }
  }
  return [...lines, line].join('\n')
}

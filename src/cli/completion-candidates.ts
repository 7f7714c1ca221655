import type { Command, Option } from 'commander'

export interface Candidate {
  readonly value: string
  readonly description?: string
}

/** What was typed before the word that is completed, as far as it says where names are to be asked. */
export interface NamesQuery {
  readonly prefix: string
  readonly databaseUrl: string | undefined
  readonly isLocal: boolean
}

export type AskNames = (query: NamesQuery) => Promise<readonly string[]>

/** Values of options that are no choices to the parser, because they may be part of a list, or one of many. */
const values: Readonly<Record<string, readonly string[]>> = {
  '--sort': ['name', 'since', 'token'],
  '--state': ['held', 'expired', 'draining', 'withheld', 'free'],
  '--wait': ['forever'],
}

/** What the words say so far: which command, and what of it is given. */
class Reading {
  command: Command
  readonly args: string[] = []
  /** The option whose value comes next. */
  pending: Option | undefined
  isBehindDashes = false
  databaseUrl: string | undefined
  isLocal = false

  constructor(program: Command) {
    this.command = program
  }

  read(word: string): void {
    const { pending } = this
    if (pending !== undefined && (pending.required || !word.startsWith('-'))) {
      if (!pending.variadic) this.pending = undefined
      this.#set(pending, word)
      return
    }
    this.pending = undefined
    if (this.isBehindDashes || !word.startsWith('-') || word === '-') this.#readOperand(word)
    else if (word === '--') this.isBehindDashes = true
    else this.#readOption(word)
  }

  #readOption(word: string): void {
    const equals = word.indexOf('=')
    const option = this.command.options.find(({ long, short }) =>
      [long, short].includes(equals < 0 ? word : word.slice(0, equals)),
    )
    if (option === undefined) return
    if (equals >= 0) this.#set(option, word.slice(equals + 1))
    else if (option.required || option.optional) this.pending = option
    else if (option.long === '--local') this.isLocal = true
  }

  #readOperand(word: string): void {
    const inner = this.args.length > 0 ? undefined : this.command.commands.find((one) => one.name() === word)
    if (inner === undefined) this.args.push(word)
    else this.command = inner
  }

  #set({ long }: Option, value: string): void {
    if (long === '--database-url') this.databaseUrl = value
  }
}

/** What may stand in the place of `current`, behind `words`. The program's own name is not among them. */
export async function candidates(
  program: Command,
  words: readonly string[],
  current: string,
  askNames: AskNames,
): Promise<Candidate[]> {
  const isHelp = words[0] === 'help'
  const reading = new Reading(program)
  for (const word of isHelp ? words.slice(1) : words) reading.read(word)
  const names = async (prefix: string): Promise<Candidate[]> => {
    const { databaseUrl, isLocal } = reading
    return asCandidates(await askNames({ prefix, databaseUrl, isLocal }))
  }
  const found = isHelp ? subcommands(reading) : await unfiltered(reading, current, names)
  return found.filter(({ value }) => value.startsWith(current))
}

async function unfiltered(
  reading: Reading,
  current: string,
  names: (prefix: string) => Promise<Candidate[]>,
): Promise<Candidate[]> {
  const { command, pending, isBehindDashes } = reading
  if (pending?.required === true) return valuesOf(pending, current, names)
  if (!isBehindDashes && current.startsWith('-')) {
    const equals = current.indexOf('=')
    if (equals < 0) return options(reading)
    const long = current.slice(0, equals)
    const option = command.options.find((one) => one.long === long)
    if (option === undefined) return []
    const found = await valuesOf(option, current.slice(equals + 1), names)
    return found.map(({ value }) => ({ value: `${long}=${value}` }))
  }
  if (command.commands.length > 0) return subcommands(reading)
  const argument = command.registeredArguments[reading.args.length]
  if (argument === undefined) return isBehindDashes ? [] : options(reading)
  if (argument.argChoices !== undefined) return asCandidates(argument.argChoices)
  if (!['lease', 'pattern'].includes(argument.name())) return []
  const found = await names(current)
  // Before "--" it would be read as an option.
  return isBehindDashes ? found : found.filter(({ value }) => !value.startsWith('-'))
}

function subcommands({ command, args }: Reading): Candidate[] {
  if (args.length > 0) return []
  return command
    .createHelp()
    .visibleCommands(command)
    .map((one) => ({ value: one.name(), description: one.summary() || one.description() }))
}

function options({ command, args }: Reading): Candidate[] {
  const help = command.createHelp()
  const found: Candidate[] = help
    .visibleOptions(command)
    .map(({ long, description }) => ({ value: long ?? '', description: firstPart(description) }))
  const isRunnable = command.name() === 'run' && args.length > 0
  return isRunnable ? [{ value: '--', description: 'the command follows' }, ...found] : found
}

async function valuesOf(
  option: Option,
  current: string,
  names: (prefix: string) => Promise<Candidate[]>,
): Promise<Candidate[]> {
  if (option.argChoices !== undefined) return asCandidates(option.argChoices)
  const { long = '' } = option
  if (long === '--lease') return names(current)
  const known = values[long] ?? []
  if (long !== '--state') return asCandidates(known)
  // A list: what has been named before stays, and is not named again.
  const before = current.split(',').slice(0, -1)
  return asCandidates(known.filter((one) => !before.includes(one)).map((one) => [...before, one].join(',')))
}

/** A list of a shell has one line for it. */
function firstPart(description: string): string {
  return description.split(/[:;,(]\s?|\. /)[0]!.trim()
}

function asCandidates(list: readonly string[]): Candidate[] {
  return list.map((value) => ({ value }))
}

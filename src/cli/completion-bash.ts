/*
 * Words as bash reads them, and replies as it wants them. bash hands a completion the line as it was typed and puts into it
 * what it gets back, both with their quotes; other shells do this themselves.
 */

/** The word that the cursor is in. */
export interface TypedWord {
  /** What the command would get. */
  readonly value: string
  /** The quote that is open at its end. */
  readonly quote: '' | "'" | '"'
  /** What stands before the part that a reply replaces, as the command would get it. */
  readonly kept: string
}

interface Line {
  /** The words before that of the cursor, without their quotes. */
  readonly words: readonly string[]
  readonly current: TypedWord
}

/** Reads a line up to the cursor. Nothing in it is expanded or run. */
export function readLine(line: string, wordBreaks: string): Line {
  const words: string[] = []
  let value: string | undefined
  let kept = ''
  let quote: TypedWord['quote'] = ''
  const add = (text: string): void => {
    value = (value ?? '') + text
  }
  // A reply takes the place of what follows the last of these, or a quote.
  const replaceFromHere = (): void => {
    kept = value ?? ''
  }
  for (let at = 0; at < line.length; at++) {
    const char = line[at]!
    if (quote === '' && /\s/.test(char)) {
      if (value !== undefined) words.push(value)
      value = undefined
      kept = ''
    } else if (char === quote || (quote === '' && (char === "'" || char === '"'))) {
      quote = quote === '' ? char : ''
      add('')
      replaceFromHere()
    } else if (char === '\\' && quote !== "'") {
      const next = line[at + 1]
      if (next === undefined) continue
      add(quote === '"' && !'$`"\\'.includes(next) ? char + next : next)
      at++
    } else {
      add(char)
      if (quote === '' && wordBreaks.includes(char)) replaceFromHere()
    }
  }
  return { words, current: { value: value ?? '', quote, kept } }
}

/** What bash is to put in the place of what it replaces, so that the command gets these values. */
export function bashReplies(values: readonly string[], current: TypedWord): string[] {
  const rests = values
    .filter((value) => value.startsWith(current.kept))
    .map((value) => value.slice(current.kept.length))
  // readline adds the closing quote, unless a reply ends with this character, whatever it means there.
  if (current.quote === "'") return rests.map((rest) => insideSingle(rest).replace(/\\''$/, String.raw`\'`))
  if (current.quote === '"') return rests.map((rest) => insideDouble(rest).replace(/\\"$/, `"'"'""`))
  const replies = rests.map(escaped)
  // bash inserts what all of them begin with. That must not be half of an escaped character.
  if (!/(?<!\\)(\\\\)*\\$/.test(commonPrefix(replies))) return replies
  return rests.map((rest) => `'${insideSingle(rest)}'`)
}

/** Outside of quotes. What is not plain is escaped, whatever it means to bash. */
function escaped(text: string): string {
  return text.replaceAll(/[^\w./:@%+,=\u0080-\u{10ffff}-]/gu, String.raw`\$&`)
}

function insideSingle(text: string): string {
  return text.replaceAll("'", String.raw`'\''`)
}

/** An exclamation mark would call the history, and the backslash before it would stay. */
function insideDouble(text: string): string {
  return text.replaceAll(/[$`"\\]/g, String.raw`\$&`).replaceAll('!', `"'!'"`)
}

function commonPrefix(texts: readonly string[]): string {
  const [first = '', ...others] = texts
  let length = first.length
  for (const other of others) while (!other.startsWith(first.slice(0, length))) length--
  return first.slice(0, length)
}

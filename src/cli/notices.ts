/** What the next major version of `pg` is going to change. Its users are told, and there is no other way to be told less. */
const ofPg = /^SECURITY WARNING: The SSL modes|^pgpass support is deprecated/

/**
 * Keeps what `pg` announces to programmers from who runs a command: nine lines on stderr whenever sslmode=require is used, two for
 * every password file, also between the lines of "run --json". What this version does is in the help.
 */
export function dropNoticesOfPg(program: NodeJS.Process): void {
  const emitWarning = program.emitWarning.bind(program) as (...args: unknown[]) => void
  program.emitWarning = (warning: string | Error, ...rest: unknown[]) => {
    const text = typeof warning === 'string' ? warning : warning.message
    if (!ofPg.test(text)) emitWarning(warning, ...rest)
  }
}

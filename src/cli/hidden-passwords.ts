/** In a URL: from the colon behind the user to the last at sign, since a password that should have been encoded may hold one. */
const inAuthority = /(:\/\/[^\s:/?#@]*:)\S*(@)/g
/** The same where the rest is missing. What is a number may be a port. */
const unfinished = /(:\/\/[^\s:/?#@]*:)(?!\d{1,5}(?:[/?#\s]|$))[^\s@]+$/g
const parameter = /([?&])([^=&\s]+)=([^&#\s]*)/g
const instead = '***'

/** The text with `***` for every password of a URL in it, wherever in the URL it stands. */
export function withoutPasswords(text: string): string {
  if (!text.includes('://')) return text
  return text
    .replaceAll(inAuthority, `$1${instead}$2`)
    .replaceAll(unfinished, `$1${instead}`)
    .replaceAll(parameter, (whole, mark: string, name: string) =>
      isSecret(name) ? `${mark}${name}=${instead}` : whole,
    )
}

/** `password`, `sslpassword`, and whatever else is called so. */
function isSecret(name: string): boolean {
  let plain = name
  try {
    plain = decodeURIComponent(name)
  } catch {
    // As it stands, then.
  }
  return /pass|pwd|secret|token/i.test(plain)
}

/**
 * Takes the passwords of URLs out of what the system shows of this process's arguments (`ps`, /proc/PID/cmdline): Node overwrites
 * them with the title of the process. The rest stays readable. Until this is called, a few hundredths of a second after the
 * start, they can be seen; the environment never can, by others.
 */
export function hidePasswords(program: NodeJS.Process): void {
  const args = [program.argv0, ...program.execArgv, ...program.argv.slice(1)]
  const shown = args.map(withoutPasswords)
  if (shown.some((arg, index) => arg !== args[index])) program.title = shown.join(' ')
}

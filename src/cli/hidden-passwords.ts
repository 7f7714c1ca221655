/** In a URL: from the colon behind the user to the last at sign, since a password that should have been encoded may hold one. */
const inAuthority = /(:\/\/[^\s:/?#@[]*:)\S*(@)/g
/** The same where the rest is missing. What is a number may be a port. */
const unfinished = /(:\/\/[^\s:/?#@[]*:)(?!\d{1,5}(?:[/?#\s]|$))[^\s@]+$/g
const parameter = /([?&])([^=&\s]+)=([^&#\s]*)/g
/** An argument ends where it ends, so that in a URL of its own a blank does not end the password. */
const argument = /^((?:--[\w-]+=)?postgres(?:ql)?:\/\/)((?!\[)[^:/?#@]*:)?([^]*)$/
const instead = '***'

/** Arguments with a password in them, the longest first, and what is shown of each. */
let hidden: readonly (readonly [whole: string, shown: string])[] = []

/** The text with `***` for every password of a URL in it, wherever in the URL it stands. */
export function withoutPasswords(text: string): string {
  const rest = hidden.reduce((sofar, [whole, shown]) => sofar.replaceAll(whole, () => shown), text)
  if (!rest.includes('://')) return rest
  return rest
    .replaceAll(inAuthority, `$1${instead}$2`)
    .replaceAll(unfinished, `$1${instead}`)
    .replaceAll(parameter, (whole, mark: string, name: string) =>
      isSecret(name) ? `${mark}${name}=${instead}` : whole,
    )
}

function withoutPassword(arg: string): string {
  const [, scheme, user, rest] = argument.exec(arg) ?? []
  if (scheme === undefined || rest === undefined) return withoutPasswords(arg)
  const shown = user === undefined ? rest : `${user}${withoutFirst(rest)}`
  const parameters = /([?&])([^=&]+)=([^&#]*)/g
  return withoutPasswords(
    scheme +
      shown.replaceAll(parameters, (whole, mark: string, name: string) =>
        isSecret(name) ? `${mark}${name}=${instead}` : whole,
      ),
  )
}

/** What stands behind the colon: a password, and what comes after it; or a port, perhaps. */
function withoutFirst(rest: string): string {
  const end = rest.lastIndexOf('@')
  if (end >= 0) return instead + rest.slice(end)
  return /^\d{1,5}(?:[/?#]|$)/.test(rest) ? rest : instead
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
  const pairs = args.map((arg) => [arg, withoutPassword(arg)] as const)
  hidden = pairs.filter(([arg, shown]) => arg !== shown).toSorted(([a], [b]) => b.length - a.length)
  if (hidden.length > 0) program.title = pairs.map(([, shown]) => shown).join(' ')
}

import { type Term } from '../lease/term.ts'
import { fencePgOptions } from '../fence/fence.ts'

/** The caller's PGOPTIONS with the fence of the term, and without one of an earlier time. */
export function pgOptionsWith(term: Term): string {
  return `${ownPgOptions()} ${fencePgOptions(term)}`.trimStart()
}

/** What the caller has in PGOPTIONS itself, without a fence. */
export function ownPgOptions(): string {
  const own = process.env['PGOPTIONS'] ?? ''
  return own
    .replaceAll(/(^|[ \t\n\v\f\r])(-c\s*|--)fencepost\.fence=(\\[\s\S]|[^\\ \t\n\v\f\r])*/g, '')
    .trim()
}

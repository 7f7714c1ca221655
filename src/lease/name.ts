import { InvalidArgumentError } from '../errors.ts'
import { show } from '../duration.ts'

const maxBytes = 512
// oxlint-disable-next-line no-control-regex -- Control characters are what is looked for.
const control = /[\u0000-\u001f\u007f-\u009f]/

/**
 * Checks the name of a lease or of a token sequence: 1 to 512 bytes of UTF-8 without control characters. Names are
 * compared byte by byte: "Job" and "job" are two leases, and so are two spellings of "é".
 *
 * @throws InvalidArgumentError
 */
export function checkName(option: string, value: unknown): string {
  if (typeof value !== 'string') {
    throw new InvalidArgumentError(option, value, `${option} must be a string; got ${show(value)}`)
  }
  const bytes = Buffer.byteLength(value)
  if (bytes < 1 || bytes > maxBytes) {
    throw new InvalidArgumentError(
      option,
      value,
      `${option} must have 1 to ${maxBytes} bytes of UTF-8; got ${bytes}: ${show(value)}`,
    )
  }
  if (control.test(value) || !value.isWellFormed()) {
    throw new InvalidArgumentError(
      option,
      value,
      `${option} must have no control characters and no half surrogate pairs; got ${show(value)}`,
    )
  }
  return value
}

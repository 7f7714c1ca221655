import { describe, expect, test } from 'vitest'
import { InvalidArgumentError } from '../../src/errors.ts'
import { checkName } from '../../src/lease/name.ts'

describe('the name of a lease', () => {
  test.each([
    'a',
    ' padded ',
    'Job',
    'a/b',
    'a:b',
    '--help',
    '$(x)',
    `quote'"`,
    'x'.repeat(512),
    'é'.repeat(256),
    '🔒',
  ])('%j is taken as it is', (name) => {
    expect(checkName('name', name)).toBe(name)
  })

  test.each([
    '',
    'x'.repeat(513),
    'é'.repeat(257),
    'line\nbreak',
    'nul\u0000',
    'tab\t',
    '\u007f',
    '\u0085',
    '\ud800',
    'half\udc00',
    null,
    undefined,
    7,
    {},
  ])('%j is refused, and never taken for a busy lease', (name) => {
    expect(() => checkName('name', name)).toThrow(InvalidArgumentError)
  })
})

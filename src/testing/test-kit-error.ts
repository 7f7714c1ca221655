/** What was wrong about the use of the test kit. */
export type TestKitErrorCode =
  | 'IN_PRODUCTION'
  | 'KIT_CLOSED'
  | 'UNKNOWN_LEASE'
  | 'NOT_HELD'
  | 'FOREIGN_HOLDER'
  | 'STILL_IN_USE'
  | 'NOBODY_WAITS'
  | 'NO_SUCH_REPLY'

/**
 * The test kit was asked for something that it cannot or will not do; nothing was changed. `code` is stable across versions; the
 * message is not. What fencepost and the database say comes as the errors of `fencepost`.
 */
export class TestKitError extends Error {
  readonly code: TestKitErrorCode
  /** The lease that was named; undefined where none was. */
  readonly lease: string | undefined

  constructor(code: TestKitErrorCode, message: string, lease?: string) {
    super(message)
    this.name = new.target.name
    this.code = code
    this.lease = lease
  }
}

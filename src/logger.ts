/** Where fencepost reports what nobody is waiting for. `console` and pino both fit; the default says nothing. */
export interface Logger {
  debug(message: string): void
  info(message: string): void
  warn(message: string): void
  error(message: string): void
}

export const silent: Logger = {
  debug() {},
  info() {},
  warn() {},
  error() {},
}

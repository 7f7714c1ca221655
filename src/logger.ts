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

/** The same logger, except that its own failures stay its own: what it reports happens where nobody could catch them. */
export function harmless(logger: Logger): Logger {
  const guarded =
    (level: keyof Logger) =>
    (message: string): void => {
      try {
        logger[level](message)
      } catch {
        // There is nowhere left to report it.
      }
    }
  return { debug: guarded('debug'), info: guarded('info'), warn: guarded('warn'), error: guarded('error') }
}

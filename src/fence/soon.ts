/** Waits for the step, but no longer than that. */
export async function soon(ms: number, step: Promise<unknown>): Promise<void> {
  const { promise: timeout, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, ms)
  try {
    await Promise.race([step, timeout])
  } finally {
    clearTimeout(timer)
  }
}

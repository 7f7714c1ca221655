import { readFile } from 'node:fs/promises'
import { FencepostError } from '../errors.ts'

export function failure(message: string, cause?: unknown): FencepostError {
  return new FencepostError('LOCAL_SERVER_FAILED', message, cause === undefined ? undefined : { cause })
}

export function hasCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}

/** Undefined when the file is not there. Any other failure is thrown. */
export async function readIfThere(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    // ESRCH is how /proc says that the process went while its file was read.
    if (hasCode(error, 'ENOENT', 'ESRCH')) return undefined
    throw error
  }
}

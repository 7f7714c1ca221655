import type { DemoClient } from './demo-client.ts'
import { isThere, programClient, readJson } from './program.ts'

const script = `
import json, sys, psycopg
balance, token = int(sys.argv[1]), int(sys.argv[2])
try:
    with psycopg.connect() as db:
        db.execute("insert into fencepost_demo_line (balance, fence_token) values (%s, %s)", (balance, token))
        db.execute("update fencepost_demo set balance = %s, fence_token = %s where id = 1", (balance, token))
except psycopg.Error as error:
    told = error.diag
    json.dump({"sqlstate": error.sqlstate, "message": told.message_primary or str(error), "detail": told.message_detail}, sys.stderr)
    sys.exit(1)
`

/** Debian's package belongs to Debian's Python, which need not be the first on the path. */
export async function python(): Promise<string | undefined> {
  for (const program of ['python3', '/usr/bin/python3']) {
    if (await isThere(program, '-c', 'import psycopg')) return program
  }
  return undefined
}

export async function missing(): Promise<string | undefined> {
  return (await python()) === undefined
    ? 'no Python has psycopg: install it (Debian: python3-psycopg)'
    : undefined
}

export async function open(url: string): Promise<DemoClient> {
  const program = (await python()) ?? 'python3'
  return programClient(
    url,
    ({ balance, token }) => ({ program, args: ['-c', script, String(balance), String(token)] }),
    readJson,
  )
}

import { prose, terms } from './manual.ts'

/** What the help of the program as a whole says after the list of its commands. */
export function overview(): string {
  return `
The database:
${prose(`
The first of these that is there names it: --database-url; FENCEPOST_DATABASE_URL; DATABASE_URL; PGHOST or PGDATABASE. --local
takes this machine's own server instead. With none of them a command refuses, with 64.

What a URL leaves open comes from the PG variables, and the password also from the file of passwords: "postgres:///app" takes
the host and the user from there. A password on the command line is covered up as soon as fencepost runs, but others may see it
before; in the environment they never do.`)}

TLS:
${prose(`
In the URL, or with the variable PGSSLMODE: sslmode=disable is without (the default, also where the server has it); verify-full
has the server prove its name, by a certificate of an authority that Node knows or that the file in sslrootcert has; no-verify
takes any. prefer, require and verify-ca mean verify-full in this version of pg; with uselibpqcompat=true in the URL they mean
what they mean to psql. sslcert and sslkey are the files of a client's own certificate. PGSSLROOTCERT, PGSSLCERT and PGSSLKEY
are not read.`)}

Environment:
${terms([
  ['FENCEPOST_DATABASE_URL', 'the database, before DATABASE_URL'],
  ['DATABASE_URL', 'the database'],
  ['PGHOST, PGPORT, PGUSER, PGDATABASE', 'its parts, for what no URL says'],
  ['PGPASSWORD', 'the password'],
  ['PGPASSFILE', 'a file of passwords (default: ~/.pgpass), readable for its owner alone'],
  ['PGSSLMODE, PGSSLNEGOTIATION', 'TLS, for what no URL says'],
  ['NODE_EXTRA_CA_CERTS', 'a file with more authorities for TLS, read by Node'],
  ['PGOPTIONS', 'settings of the session; run --fence and env add the fence'],
  ['FENCEPOST_LOCAL_DIR, XDG_DATA_HOME', 'where the local server has its data'],
  ['FENCEPOST_COMPLETION_WAIT', 'how long the shell waits for names of leases; a second'],
  ['FENCEPOST_LEASE, FENCEPOST_TOKEN, …', 'given to commands by run and env: see there'],
  ['NO_COLOR, FORCE_COLOR', 'without colours, with colours'],
])}

Exit codes:
${terms([
  ['0', 'done'],
  ['1', 'failed'],
  ['3', 'what was named is not there; nothing was changed'],
  ['64', 'wrong usage'],
  ['69', 'the database cannot be used'],
  ['75', 'somebody else has the lease, or an open transaction'],
])}
  "run" has more. Each command lists its own.

Examples:
  fencepost migrate --database-url postgres://app@db.example/app
  fencepost run nightly-import --wait 10m -- node import.js
  fencepost demo`
}

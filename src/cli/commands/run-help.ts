/** What `fencepost run --help` says after the options. */
export const runHelp = `
The command gets FENCEPOST_LEASE, FENCEPOST_TOKEN, FENCEPOST_HOLDER, FENCEPOST_SEQUENCE, FENCEPOST_PGOPTIONS and FENCEPOST_FENCE_SQL:
the SQL that, as the first statement of a transaction, fences its writes. stdin and stdout are the command's alone; what fencepost has
to say goes to stderr.

Fenced without a change: with --fence the command's PGOPTIONS carry the fence, beside what was in there. psql, pg_restore, and
all that is built on libpq or on Node's pg read it: on protected tables (fencepost protect) and schemas (protect --ddl) the
database then refuses what a runner writes that has lost its lease. Not by default, because PgBouncer and other poolers
refuse such connections ("unsupported startup parameter: options") or drop the fence. Fencepost tries it by way of its own URL,
and warns; then name the server itself in the command's URL, or have the command send FENCEPOST_FENCE_SQL.

Signals: the command runs in a session of its own. INT, TERM, HUP, QUIT, USR1, USR2 and CONT are passed on to it and to what it
started; TSTP (Ctrl-Z) stops it with fencepost. With --foreground it shares the terminal and the process group instead, for
editors, shells, psql and prompts for passwords: then the terminal's Ctrl-C, Ctrl-\\ and Ctrl-Z reach it by themselves.

When no heartbeat gets through, or --max-hold is nearly over, the command gets TERM while there is time for the grace, and KILL
before anybody else can be granted the lease. When the lease has been taken away, TERM comes at once. INT, TERM, HUP and
QUIT end the grace. When fencepost itself is killed, a shell that watches it ends the command in the same way. When it is
stopped (STOP), nobody does: then only the fence protects.

The lease is given back when the command is gone and nothing is left of what it started: what outlives the command gets
TERM, and KILL after the grace. What is meant to stay has to be started with setsid; it then runs without the lease.

As the first process of a container it handles signals as anywhere else, but processes that lose their parents stay as
zombies: start the container with --init, or fencepost under tini, when the command leaves such behind.

--json prints one JSON object a line on stderr: {event, time, lease, …, message}, tokens as strings. Events: waiting {state, holder,
host, pid, since, remainingMs, place, waiters}, granted {token, waitedMs, ttlMs}, started {token, pid}, at-risk {token, expiresInMs},
ending {token, reason}, warning; and at the end one of released {token, outcome, exitCode}, lost {token, reason, commandExitCode,
exitCode}, conflict {holder, host, pid, since, waitedMs, exitCode}, stopped {signal, exitCode}, error {exitCode}.

Exit codes: the command's own; 128+n when signal n ended it; 126 not executable, 127 not found; 64 wrong usage;
69 the database cannot be used (unreachable, wrong password, no schema, no rights); 70 the lease was lost, or held for --max-hold
(even if the command said 0); 75 not acquired (see --on-conflict and --conflict-exit-code).

Examples:
  fencepost run deploy --wait 10m -- npx prisma migrate deploy
  fencepost run nightly --no-wait --on-conflict skip --min-hold 1m -- ./nightly.sh
  fencepost run schema --wait forever --fence -- psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f migrate.sql
  fencepost run console --foreground -- psql "$DATABASE_URL"`

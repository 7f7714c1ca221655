#!/usr/bin/env bash
# Brings docker-compose.yml up under a project name and a port of its own, asks the server one question through
# the published port, and takes everything down again, volume included. Needs a running engine, a local
# postgres:18 and node_modules. Exits 0 when all of it worked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null 2>&1; then
  compose=(docker-compose)
else
  echo 'compose: neither "docker compose" nor docker-compose is installed' >&2
  exit 1
fi
# Without this, compose would try to pull, which may hang where no registry is reachable.
if ! timeout 10 docker image inspect postgres:18 >/dev/null 2>&1; then
  echo 'compose: no engine, or no local image postgres:18' >&2
  exit 1
fi

# A name and a port of their own keep a developer's running database and its data out of reach.
export COMPOSE_PROJECT_NAME="fencepost-check-$$"
FENCEPOST_PORT=$(node -e '
  const server = require("node:net").createServer()
  server.listen(0, "127.0.0.1", () => { console.log(server.address().port); server.close() })')
export FENCEPOST_PORT

finish() {
  local code=$?
  trap - EXIT
  if [ "$code" -ne 0 ]; then timeout 20 "${compose[@]}" logs --tail=20 2>&1 || true; fi
  if ! timeout 60 "${compose[@]}" down --volumes --remove-orphans >/dev/null 2>&1; then
    echo 'compose: taking it down failed' >&2
    [ "$code" -ne 0 ] || code=1
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

timeout 120 "${compose[@]}" up -d
id=$("${compose[@]}" ps -q postgres)
health=starting
deadline=$((SECONDS + 60))
while [ "$health" != healthy ]; do
  if [ "$SECONDS" -ge "$deadline" ]; then
    echo "compose: not healthy after 60 s, but $health" >&2
    exit 1
  fi
  sleep 0.5
  health=$(docker inspect --format '{{.State.Health.Status}}' "$id")
done

# shellcheck disable=SC2016 # The program is JavaScript, and the shell must leave its templates alone.
node --input-type=module -e '
  import pg from "pg"
  const client = new pg.Client({
    connectionString: `postgres://fencepost:fencepost@127.0.0.1:${process.env.FENCEPOST_PORT}/fencepost`,
    connectionTimeoutMillis: 10_000,
  })
  await client.connect()
  const { rows } = await client.query("select current_setting($1) as version, current_user::text as name", ["server_version"])
  await client.end()
  if (!rows[0].version.startsWith("18.") || rows[0].name !== "fencepost") throw new Error(JSON.stringify(rows))
  console.log(`compose: PostgreSQL ${rows[0].version} answered on the published port`)'

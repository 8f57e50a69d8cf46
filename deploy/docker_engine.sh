#!/bin/sh
# Run a command with a Docker engine. If no engine is running, start one for the command and stop it
# afterwards.
#
#   deploy/docker_engine.sh COMMAND [ARGUMENT...]
#
# As root on Debian, the script installs missing packages. If the package starts the engine as a
# service, the service keeps running. If no engine can run, the script prints one line and runs the
# command without an engine. The exit status is the status of the command. Logs are in build/docker.
set -eu
cd "$(dirname "$0")/.."
dir=build/docker
apt_seconds=180

say() {
	echo "docker engine: $*" >&2
}

answers() {
	timeout 20 docker info >/dev/null 2>&1
}

missing() {
	command -v dockerd >/dev/null || echo docker.io
	docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || echo docker-compose
	command -v debootstrap >/dev/null || echo debootstrap
}

install_missing() {
	packages=$(missing)
	[ -n "$packages" ] || return 0
	command -v apt-get >/dev/null || {
		say "no apt-get to install" $packages
		return 1
	}
	say "installing" $packages
	# shellcheck disable=SC2086 # one word per package
	DEBIAN_FRONTEND=noninteractive timeout $apt_seconds sh -euc 'apt-get update -q
		apt-get install -q -y --no-install-recommends "$@"' sh $packages >$dir/apt.log 2>&1 || {
		say "cannot be installed: $(tail -n 1 $dir/apt.log)"
		return 1
	}
}

start() {
	! answers || return 0
	[ "$(id -u)" = 0 ] || {
		say "none answers, and only root can start one"
		return 1
	}
	mkdir -p $dir
	install_missing || return 1
	! answers || return 0
	setsid dockerd >$dir/log 2>&1 </dev/null &
	engine=$!
	for _ in $(seq 150); do
		! answers || return 0
		kill -0 $engine 2>/dev/null || break
		sleep 0.2
	done
	say "does not run here: $(grep -v '^$' $dir/log | tail -n 1)"
	return 1
}

stop() {
	[ -n "$engine" ] && kill "$engine" 2>/dev/null || return 0
	for _ in $(seq 100); do
		kill -0 "$engine" 2>/dev/null || return 0
		sleep 0.2
	done
	kill -9 "$engine"
}

[ $# -gt 0 ] || {
	say "which command?"
	exit 2
}
engine=""
trap stop EXIT
trap 'exit 130' INT TERM HUP
start || true
"$@"

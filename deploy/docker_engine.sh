#!/bin/sh
# A Docker engine on a machine where none runs.
#
#   deploy/docker_engine.sh start    print the process id of the engine that had to be started; prints
#                                    nothing where one answers already
#   deploy/docker_engine.sh stop     end the one that start started
#
# As root it installs what is missing on Debian; an engine that its package starts as a service of the
# machine answers already, and stays. Exit 1 where none can run, said in one line. The log and the
# process id lie in build/docker.
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

# Ours: a process id can have become another program's.
running() {
	[ "$(cat "/proc/$1/comm" 2>/dev/null)" = dockerd ]
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
	pid=$!
	echo $pid >$dir/pid
	for _ in $(seq 150); do
		if answers; then
			! running $pid || echo $pid
			return 0
		fi
		kill -0 $pid 2>/dev/null || break
		sleep 0.2
	done
	say "does not run here: $(grep -v '^$' $dir/log | tail -n 1)"
	stop
	return 1
}

stop() {
	[ -f $dir/pid ] || return 0
	pid=$(cat $dir/pid)
	rm -f $dir/pid
	running "$pid" || return 0
	kill "$pid"
	for _ in $(seq 100); do
		running "$pid" || return 0
		sleep 0.2
	done
	kill -9 "$pid"
}

case "${1-}" in
start) start ;;
stop) stop ;;
*)
	say "start or stop?"
	exit 2
	;;
esac

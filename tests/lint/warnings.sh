#!/bin/sh
# Check that all C files compile without a warning with gcc and clang. Each compiler has a build
# directory of its own. With arguments, compile only these .c files. CUDA files are not checked
# here, because every build prints the warnings of nvcc. If WERROR=-Werror is in the environment, as
# in .ci/run, all objects in build/release were compiled with -Werror, so gcc uses this directory
# and compiles only the missing objects. Clang compiles without optimization: its warnings do not
# depend on it, and nobody runs its objects.
set -u
failed=0
cuda=$(make -s print-CUDA_HOME)
# shellcheck disable=SC2046 # file names have no blanks
[ $# -gt 0 ] || set -- $(find common proto kernels server worker tests -name '*.c' | sort |
	grep -v "${cuda:+^$}${cuda:-^kernels/cuda/\|^kernels/ladder/\|^tests/gpu/\|^tests/bench/gpu}")
for cc in gcc clang; do
	b=build/lint-$cc
	optimize=""
	[ "$cc-${WERROR-}" != gcc--Werror ] || b=build/release
	[ $cc = gcc ] || optimize="OPT.release=-O0 CORE_FLAGS="
	targets=$(printf "$b/%s " "$@" | sed 's/\.c /.o /g')
	# shellcheck disable=SC2086 # each target and each variable is one word
	make -s -k -j "$(nproc)" B=$b CC=$cc WERROR=-Werror $optimize $targets >&2 || {
		echo "warnings: not clean under $cc"
		failed=1
	}
done
exit $failed

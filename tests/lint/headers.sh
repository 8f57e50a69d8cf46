#!/bin/sh
# Check that every header compiles alone, without a warning, with gcc and clang. With arguments,
# check only these headers. The headers of the CUDA device are skipped if CUDA's own headers are not
# installed. A header under tests/ must not have a function body, because each test that includes
# the header would compile the body again. The body belongs in the .c file beside the header. A
# static inline function of one line is allowed.
set -u
cuda=$(make -s print-CUDA_HOME)
flags="-x c -fsyntax-only -std=c11 -D_GNU_SOURCE -I. -Werror $(make -s print-WARN print-PKG_CFLAGS)"
flags="$flags ${cuda:+-isystem $cuda/include}"
failed=0
# shellcheck disable=SC2046,SC2086 # file names have no blanks; each flag is a word
[ $# -gt 0 ] || set -- $(find common proto kernels server worker tests -name '*.h' | sort)
alone=""
for h in "$@"; do
	case $cuda:$h in :common/gpu_memory.h | :kernels/cuda/* | :kernels/ladder/*) continue ;; esac
	alone="$alone $h"
	case $h in tests/*)
		awk '/^static inline/ { short = 1 }
			/^{/ { start = FNR }
			/^}/ && start {
				if (!short || FNR != start + 2) { print FILENAME ": a function body in line " start; bad = 1 }
				short = start = 0
			}
			END { exit bad }' "$h" || failed=1
		;;
	esac
done
export flags
# shellcheck disable=SC2016 # the shell that xargs starts expands the variables
compile='failed=0
for cc in gcc clang; do
	printf "#include \"%s\"\nextern int not_empty;\n" "$1" | $cc $flags - || {
		echo "headers: $1 does not compile alone under $cc"
		failed=1
	}
done
exit $failed'
# shellcheck disable=SC2086 # each header is one word
printf '%s\n' $alone | xargs -P "$(nproc)" -I '{}' sh -c "$compile" compile '{}' || failed=1
exit $failed

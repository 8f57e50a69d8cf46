#!/bin/sh
# Check the C code with clang-tidy. .clang-tidy and tests/.clang-tidy list the checks, and the reasons
# for those that are disabled. With arguments, check only these .c files. Repair a finding, or silence
# it with a reason: NOLINTNEXTLINE(check). `clang-tidy FILE -- $(make -s print-CFLAGS)` shows all
# details.
set -u
b=build/lint-clang
cuda=$(make -s print-CUDA_HOME)
[ $# -gt 0 ] || {
	make -s B=$b CC=clang $b/gen/cnnps.pb-c.h $b/gen/onnx.pb-c.h $b/gen/opt_names.h $b/gen/page_bytes.h $b/gen/report_bytes.h >&2 || exit 1
	# shellcheck disable=SC2046 # no blanks in names
	set -- $(find common proto kernels server worker tests -name '*.c' | sort |
		grep -v "${cuda:+^$}${cuda:-^kernels/cuda/\|^kernels/ladder/\|^tests/gpu/\|^tests/bench/gpu}")
}
# shellcheck disable=SC2046 # flags are words
found=$(printf '%s\n' "$@" | timeout --foreground 600 xargs -P "$(nproc)" -I '{}' clang-tidy --quiet '{}' -- \
	$(make -s B=$b CC=clang print-CFLAGS) 2>&1) && exit 0
echo "$found" | grep -E ' (error|warning): ' | sort -u | grep . || echo "tidy: $found"
exit 1

#!/bin/sh
# Check the C code with clang-tidy. .clang-tidy and tests/.clang-tidy list the checks, and give the
# reason for each check that is disabled. With arguments, check only these .c files. The lint checks
# a file without findings again only when the code or the flags of the file have changed. Repair a
# finding, or silence it with a comment that gives the reason and has NOLINTNEXTLINE(check).
# `clang-tidy FILE -- $(make -s print-CFLAGS)` shows all details. The analyzer examines up to 50,000
# states of each function. With CNN_SLOW=1 it examines up to 225,000, which takes three times as
# long.
set -u
nodes=$([ -n "${CNN_SLOW-}" ] && echo 225000 || echo 50000)
b=build/lint-clang
cuda=$(make -s print-CUDA_HOME)
[ $# -gt 0 ] || {
	make -s B=$b CC=clang $b/gen/cnnps.pb-c.h $b/gen/onnx.pb-c.h $b/gen/opt_names.h $b/gen/page_bytes.h $b/gen/report_bytes.h >&2 || exit 1
	# shellcheck disable=SC2046 # file names have no blanks
	set -- $(find common proto kernels server worker tests -name '*.c' | sort |
		grep -v "${cuda:+^$}${cuda:-^kernels/cuda/\|^kernels/ladder/\|^tests/gpu/\|^tests/bench/gpu}")
}
mkdir -p "$b/tidy"
# The result of clang-tidy depends on these files, on the NOLINT comments, on the preprocessed file
# and on the flags.
known=$({ echo "$nodes"; cat .clang-tidy tests/.clang-tidy; clang-tidy --version; grep -rh --include='*.h' NOLINT common proto kernels server worker tests; } 2>&1 | sha256sum)
export b known nodes
# shellcheck disable=SC2016 # the shell that xargs starts expands the variables
tidy='file=$1
shift
key=$({ echo "$known $*"; grep NOLINT "$file"; clang -E -P "$@" "$file"; } 2>&1 | sha256sum | cut -d " " -f 1)
[ -e "$b/tidy/$key" ] || { clang-tidy --quiet --extra-arg=-Xclang \
	--extra-arg=-analyzer-config --extra-arg=-Xclang "--extra-arg=max-nodes=$nodes" "$file" -- "$@" && : >"$b/tidy/$key"; }'
# shellcheck disable=SC2046 # each flag is a word
found=$(printf '%s\n' "$@" | timeout --foreground 600 xargs -P "$(nproc)" -I '{}' sh -c "$tidy" tidy '{}' \
	$(make -s B=$b CC=clang print-CFLAGS) 2>&1) && exit 0
echo "$found" | grep -E ' (error|warning): ' | sort -u | grep . || echo "tidy: $found"
exit 1

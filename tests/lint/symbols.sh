#!/bin/sh
# Check that the core is pure: its object files have no global variables and use only functions for
# memory, text and math, the seeded random generator, the function of a failed assertion, and
# functions of the core. The same rule applies to the worker's session, except that it may allocate
# and free memory. Also check that no files and no folders call each other in a circle, in the
# programs and in the tests. The lint reads the object files that the lint `warnings` has built, or
# those of the build directory in its argument.
set -u
b=build/lint-gcc
[ "${WERROR-}" != -Werror ] || b=build/release
b=${1:-$b}
free='memchr|run_head_[a-z]+|__cpu_model|__cpu_indicator_init|memcpy|memmove|memset|memcmp|strlen|strnlen|strcmp|strncmp|__mem(cpy|move|set)_chk'
free="$free|__stack_chk_fail|sqrtf?|fabsf?|isfinite|__finitef?|isnan|__isnanf?|_GLOBAL_OFFSET_TABLE_"
free="$free|rng_[a-z]+|tensor_list_[a-z]+|ps_assert_failed"
failed=0

# check_symbols WHAT ALLOWED OBJECT...: report the symbols that an object file must not use, and its
# variables
check_symbols() {
	what=$1
	allowed=$2
	shift 2
	[ -f "$1" ] || {
		echo "symbols: no object files of $what in $b: build first"
		failed=1
		return
	}
	own=$(nm --defined-only "$@" | awk 'NF == 3 && $2 ~ /[A-Zi]/ { print $3 }')
	for o in "$@"; do
		nm -u "$o" | awk 'NF == 2 { print $2 }' | grep -vxE "$allowed" | while read -r s; do
			echo "$own" | grep -qx "$s" || echo "$o: refers to $s, which $what may not"
		done
		objdump -t "$o" | awk -F '\t' 'substr($1, 18, 7) !~ /d/ && $1 !~ / \.data\.rel\.ro/ &&
			$1 ~ / (\.data|\.bss|\.tdata|\.tbss|\*COM\*)/ { sub(/.* /, "", $2); print $2 }' |
			sed "s|.*|$o: & is a variable: state belongs into the struct|"
	done | grep . && failed=1
}

# Print the object files whose source exists. A build directory may also have older object files.
all_objects() {
	find "$b/common" "$b/proto" "$b/kernels" "$b/server" "$b/worker" "$b/tests" -name '*.o' 2>/dev/null |
		sort | while read -r o; do
			source=${o#"$b/"}
			[ ! -e "${source%%.*}.c" ] && [ ! -e "${source%%.*}.cu" ] || echo "$o"
		done
}

# Print "A B" for each pair of files in which A uses a symbol of B. A test may define a symbol again
# to replace a definition of the programs. Therefore a use of a symbol refers to the definition in
# the folder of the file, else to the one in the programs, else to the one in tests/support, else to
# any other definition in the tests.
calls() {
	nm -A "$@" | awk -v b="$b/" '
		function distance(from, to,   a, c) {
			a = from; c = to
			sub(/[^\/]*$/, "", a); sub(/[^\/]*$/, "", c)
			return a == c ? 1 : to !~ /^tests\// ? 2 : from !~ /^tests\// ? 9 : to ~ /^tests\/support\// ? 3 : 4
		}
		{ file = substr($1, length(b) + 1); sub(/:.*/, "", file) }
		$(NF - 1) ~ /^[A-TV-Zi]$/ && $NF != "main" { at[$NF] = at[$NF] " " file }
		$(NF - 1) ~ /^[Uw]$/ { use[file " " $NF] }
		END {
			for (u in use) {
				split(u, pair, " ")
				n = split(at[pair[2]], file_of, " ")
				nearest = 8
				for (i = 1; i <= n; i++)
					if (distance(pair[1], file_of[i]) < nearest)
						nearest = distance(pair[1], file_of[i])
				for (i = 1; i <= n; i++)
					if (distance(pair[1], file_of[i]) == nearest && file_of[i] != pair[1])
						print pair[1], file_of[i]
			}
		}' | sort -u
}

# in_order WHAT: read pairs of names, and report names that call each other in a circle. None of the
# files in a circle can be understood or tested alone.
in_order() {
	loop=$(tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\)$/\1/p' | grep -v ':' | sort -u | tr '\n' ' ')
	[ -z "$loop" ] || { echo "symbols: $1 call each other in a circle: $loop"; failed=1; }
}

in_layers() {
	[ $# -gt 0 ] || return
	d=$(mktemp)
	calls "$@" >"$d"
	in_order files <"$d"
	sed 's|/[^/ ]* | |; s|/[^/]*$||' "$d" | awk '$1 != $2' | sort -u >"$d.folders"
	in_order folders <"$d.folders"
	rm "$d" "$d.folders"
}

# Report calls within the core from a file to a file in a lower row of the table in
# docs/architecture.md.
in_table() {
	page=docs/architecture.md
	d=$(mktemp)
	awk '
		/^#/ { on = /^### Inside server.core/ }
		on && /^\| [a-z]/ {
			for (row++; match($0, /`[a-z_0-9]+\.c`/); $0 = substr($0, RSTART + RLENGTH))
				print "server/core/" substr($0, RSTART + 1, RLENGTH - 4) ".o", row
		}' "$page" >"$d"
	calls "$@" | awk -v page="$page" 'NR == FNR { row[$1] = $2; next }
		!row[$1] || !row[$2] { print "symbols: " page " has no layer for " (row[$1] ? $2 : $1) }
		row[$1] < row[$2] { print "symbols: " $1 " calls " $2 ", which " page " has below it" }
		' "$d" - | grep . && failed=1
	rm "$d"
}

# shellcheck disable=SC2046 # file names have no blanks
in_layers $(all_objects)
in_table "$b"/server/core/*.o
check_symbols 'the core' "$free" "$b"/server/core/*.o
check_symbols 'the session' "$free|mem_try|free" "$b"/worker/client/session.o
exit $failed

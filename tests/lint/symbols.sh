#!/bin/sh
# Check that the core is pure: its object files use only functions of memory, text and math, the
# seeded random generator, the function of a failed assertion and other functions of the core, and
# have no variables. The worker's session has the same rule, but may allocate memory once, when it
# is created. Also check that no files of the programs call each other in a circle. The lint reads
# the objects of the warnings lint, or of the build directory in its argument.
set -u
b=${1:-build/lint-gcc}
free='memchr|run_head_[a-z]+|__cpu_model|__cpu_indicator_init|memcpy|memmove|memset|memcmp|strlen|strnlen|strcmp|strncmp|__mem(cpy|move|set)_chk'
free="$free|__stack_chk_fail|sqrtf?|fabsf?|isfinite|__finitef?|isnan|__isnanf?|_GLOBAL_OFFSET_TABLE_"
free="$free|rng_[a-z]+|ps_assert_failed"
failed=0

# look WHAT ALLOWED OBJECT...: report symbols of the objects that are not allowed
look() {
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

# Print the object files of the five folders that have a source; a build directory may have older ones.
all_objects() {
	find "$b/common" "$b/proto" "$b/kernels" "$b/server" "$b/worker" -name '*.o' 2>/dev/null | sort |
		while read -r o; do
			source=${o#"$b/"}
			[ ! -e "${source%.o}.c" ] && [ ! -e "${source%.o}.cu" ] || echo "$o"
		done
}

# Report files that call each other in a circle: none of them can be understood or tested alone.
in_layers() {
	what=$1
	shift
	d=$(mktemp -d)
	nm -A --defined-only "$@" | awk 'NF == 3 && $2 ~ /[A-Z]/ { sub(/:.*/, "", $1); print $3, $1 }' | sort >"$d/def"
	nm -A -u "$@" | awk '{ sub(/:.*/, "", $1); print $NF, $1 }' | sort >"$d/use"
	loop=$(join "$d/use" "$d/def" | awk '$2 != $3 { print $2, $3 }' | sort -u | tsort 2>&1 >/dev/null |
		sed -n 's/^tsort: \([^-].*\.o\)$/\1/p' | tr '\n' ' ')
	rm -r "$d"
	[ -z "$loop" ] || { echo "symbols: files of $what call each other in a circle: $loop"; failed=1; }
}

# Report calls within the core that go down in the table of docs/architecture.md.
in_table() {
	page=docs/architecture.md
	d=$(mktemp -d)
	awk -v b="$b/server/core/" '
		/^#/ { on = /^### Inside server.core/ }
		on && /^\| [a-z]/ {
			for (row++; match($0, /`[a-z_0-9]+\.c`/); $0 = substr($0, RSTART + RLENGTH))
				print b substr($0, RSTART + 1, RLENGTH - 4) ".o", row
		}' "$page" >"$d/rows"
	nm -A --defined-only "$@" | awk 'NF == 3 && $2 ~ /[A-Z]/ { sub(/:.*/, "", $1); print $3, $1 }' | sort >"$d/def"
	nm -A -u "$@" | awk '{ sub(/:.*/, "", $1); print $NF, $1 }' | sort >"$d/use"
	join "$d/use" "$d/def" | awk -v page="$page" 'NR == FNR { row[$1] = $2; next }
		!row[$2] || !row[$3] { print "symbols: " page " has no layer for " (row[$2] ? $3 : $2) }
		row[$2] < row[$3] { print "symbols: " $2 " calls " $1 " of " $3 ", which " page " has below it" }
		' "$d/rows" - | grep . && failed=1
	rm -r "$d"
}

# shellcheck disable=SC2046 # no blanks in names
in_layers 'the programs' "$b"/server/core/*.o $(all_objects)
in_table "$b"/server/core/*.o
look 'the core' "$free" "$b"/server/core/*.o
look 'the session' "$free|mem_try|free" "$b"/worker/client/session.o
exit $failed

#!/bin/sh
# Find circular includes. If folder A includes folder B, directly or through other folders, B must
# not include A. The same rule applies to the folders at the top level, and to headers. tsort
# reports the names for which it finds no order.
set -u
includes=$(find common proto kernels server worker tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print |
	sort | xargs grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' |
	sed -n 's/^\([^:]*\):[^"]*"\([^"]*\)".*/\1 \2/p' | grep '/.* .*/')

# in_order WHAT: read pairs of names from standard input, and report names that form a loop.
in_order() {
	loop=$(tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\)$/\1/p' | grep -v ':' | tr '\n' ' ')
	[ -z "$loop" ] || { echo "folders: $1 include each other: $loop"; return 1; }
}

failed=0
echo "$includes" | sed 's|/[^/ ]* | |; s|/[^/]*$||' | awk '$1 != $2' | sort -u |
	in_order folders || failed=1
echo "$includes" | sed 's|/[^ ]* | |; s|/.*$||' | awk '$1 != $2' | sort -u |
	in_order 'top folders' || failed=1
echo "$includes" | grep '^[^ ]*\.c*u*h ' | in_order headers || failed=1
exit $failed

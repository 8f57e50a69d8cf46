#!/bin/sh
# Includes go one way: no folder includes another that includes it, directly or through others, and
# no header includes itself through others. tsort finds what cannot be put in an order.
set -u
includes=$(find common proto kernels server worker \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print |
	sort | xargs grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' |
	sed -n 's/^\([^:]*\):[^"]*"\([^"]*\)".*/\1 \2/p' | grep '/.* .*/')

# in_order WHAT: pairs of names on standard input; complains about each loop.
in_order() {
	loop=$(tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\)$/\1/p' | grep -v ':' | tr '\n' ' ')
	[ -z "$loop" ] || { echo "folders: $1 include each other: $loop"; return 1; }
}

failed=0
echo "$includes" | sed 's|/[^/ ]* | |; s|/[^/]*$||' | awk '$1 != $2' | sort -u |
	in_order folders || failed=1
echo "$includes" | grep '^[^ ]*\.c*u*h ' | in_order headers || failed=1
exit $failed

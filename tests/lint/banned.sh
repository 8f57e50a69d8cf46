#!/bin/sh
# Calls that nobody needs: they overrun, hide errors, share state, or grow the stack by a size from
# outside. (Arrays of variable length are the compilers' business: -Wvla.)
set -u
calls='strcpy|strcat|stpcpy|strncpy|strncat|sprintf|vsprintf|strtok|strtok_r|gets'
calls="$calls|atoi|atol|atoll|atof|v?f?scanf|v?sscanf|rand|srand|rand_r|random|srandom|[delmn]rand48"
calls="$calls|alloca|tmpnam|tempnam|mktemp|system|popen|ctime|asctime|gmtime|localtime|strdupa"
failed=0
for f in $(find common proto kernels server worker tests -name '*.[ch]' -o -name '*.cu' | sort); do
	# the preprocessor takes the comments out and -fpreprocessed keeps it from doing more
	gcc -fpreprocessed -dD -E -P -x c "$f" 2>/dev/null |
		grep -nE "(^|[^A-Za-z0-9_])($calls)[[:space:]]*\(" | sed "s|^[0-9]*:|$f: banned call: |" |
		grep . && failed=1
done
exit $failed

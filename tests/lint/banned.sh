#!/bin/sh
# Calls that nobody needs: they overrun, hide errors, share state, or grow the stack by a size from
# outside. (Arrays of variable length are the compilers' business: -Wvla.)
set -u
calls='strcpy|strcat|stpcpy|strncpy|strncat|sprintf|vsprintf|strtok|strtok_r|gets'
calls="$calls|atoi|atol|atoll|atof|v?f?scanf|v?sscanf|rand|srand|rand_r|random|srandom|[delmn]rand48"
calls="$calls|alloca|tmpnam|tempnam|mktemp|system|popen|ctime|asctime|gmtime|localtime|strdupa"
# The preprocessor takes the comments out, -fpreprocessed keeps it from doing more, and lines such as
# `# 1 "FILE"` pass through it: all files in one go.
find common proto kernels server worker tests -name '*.[ch]' -o -name '*.cu' | sort |
	xargs awk 'FNR == 1 { printf "\n# 1 \"%s\"\n", FILENAME } { print }' |
	gcc -fpreprocessed -dD -E -x c - 2>/dev/null |
	awk -v calls="(^|[^A-Za-z0-9_])($calls)[[:space:]]*[(]" '
		/^# [0-9]+ "/ { file = substr($3, 2, length($3) - 2); next }
		$0 ~ calls { print file ": banned call: " $0; found = 1 }
		END { exit found }'

#!/bin/sh
# Calls that nobody needs: they overrun, hide errors, share state, or grow the stack by a size from
# outside. (Arrays of variable length are the compilers' business: -Wvla.) And the wall clock, which
# jumps: only the log may read it.
set -u
calls='strcpy|strcat|stpcpy|strncpy|strncat|sprintf|vsprintf|strtok|strtok_r|gets'
calls="$calls|atoi|atol|atoll|atof|v?f?scanf|v?sscanf|rand|srand|rand_r|random|srandom|[delmn]rand48"
calls="$calls|alloca|tmpnam|tempnam|mktemp|system|popen|ctime|asctime|gmtime|localtime|strdupa"
wall='CLOCK_REALTIME|CLOCK_TAI|(^|[^A-Za-z0-9_])(gettimeofday|uv_gettimeofday|uv_clock_gettime'
wall="$wall|timespec_get|ftime|time)[[:space:]]*[(]"
# The preprocessor takes the comments out, -fpreprocessed keeps it from doing more, and lines such as
# `# 1 "FILE"` pass through it: all files in one go.
find common proto kernels server worker tests -name '*.[ch]' -o -name '*.cu' | sort |
	xargs awk 'FNR == 1 { printf "\n# 1 \"%s\"\n", FILENAME } { print }' |
	gcc -fpreprocessed -dD -E -x c - 2>/dev/null |
	awk -v calls="(^|[^A-Za-z0-9_])($calls)[[:space:]]*[(]" -v wall="$wall" '
		/^# [0-9]+ "/ { file = substr($3, 2, length($3) - 2); next }
		$0 ~ wall && file ~ /^(common|proto|kernels|server|worker)\// && file != "common/log.c" {
			print file ": reads the wall clock: " $0
			found = 1
		}
		$0 ~ calls { print file ": banned call: " $0; found = 1 }
		END { exit found }'

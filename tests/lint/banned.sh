#!/bin/sh
# Find calls that the project does not allow: functions that overrun buffers, hide errors, share
# state, or grow the stack by a size from a peer or a file. (The compilers find arrays of variable
# length: -Wvla.) Also find calls that read the wall clock. Only the log may read this clock,
# because it may jump.
set -u
calls='strcpy|strcat|stpcpy|strncpy|strncat|sprintf|vsprintf|strtok|strtok_r|gets'
calls="$calls|atoi|atol|atoll|atof|v?f?scanf|v?sscanf|rand|srand|rand_r|random|srandom|[delmn]rand48"
calls="$calls|alloca|tmpnam|tempnam|mktemp|system|popen|ctime|asctime|gmtime|localtime|strdupa"
wall='CLOCK_REALTIME|CLOCK_TAI|(^|[^A-Za-z0-9_])(gettimeofday|uv_gettimeofday|uv_clock_gettime'
wall="$wall|timespec_get|ftime|time)[[:space:]]*[(]"
"$(dirname "$0")/code.sh" |
	awk -v calls="(^|[^A-Za-z0-9_])($calls)[[:space:]]*[(]" -v wall="$wall" '
		$0 ~ wall && /^(common|proto|kernels|server|worker)\// && !/^common\/log.c:/ {
			sub(/: /, ": reads the wall clock: ")
			print
			found = 1
		}
		$0 ~ calls { sub(/: /, ": banned call: "); print; found = 1 }
		END { exit found }'

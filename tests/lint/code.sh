#!/bin/sh
# Print all C code without its comments. Each line begins with "FILE: ". The lints that search for
# words read this output. The preprocessor of gcc removes the comments, and -fpreprocessed keeps it
# from doing more. The preprocessor keeps lines such as `# 1 "FILE"`, so one call can process all
# files.
find common proto kernels server worker tests \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sort |
	xargs awk 'FNR == 1 { printf "\n# 1 \"%s\"\n", FILENAME } { print }' |
	gcc -fpreprocessed -dD -E -x c - 2>/dev/null |
	awk '/^# [0-9]+ "/ { file = substr($3, 2, length($3) - 2); next } NF { print file ": " $0 }'

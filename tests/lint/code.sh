#!/bin/sh
# All C code without its comments, each line behind "FILE: ": what the lints read that look for words.
# The preprocessor takes the comments out, -fpreprocessed keeps it from doing more, and lines such as
# `# 1 "FILE"` pass through it: all files in one go.
find common proto kernels server worker tests \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | sort |
	xargs awk 'FNR == 1 { printf "\n# 1 \"%s\"\n", FILENAME } { print }' |
	gcc -fpreprocessed -dD -E -x c - 2>/dev/null |
	awk '/^# [0-9]+ "/ { file = substr($3, 2, length($3) - 2); next } NF { print file ": " $0 }'

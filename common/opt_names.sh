#!/bin/sh
# Print a row {"PROGRAM", "option"} for each option of each program, from the option tables in the
# sources. common/opt.c includes the output. Usage: opt_names.sh PROGRAM:FILE...
set -eu
for pair; do
	sed -nE "s/.*\b(TEXT|INT|REAL|ENUM|FLAG)\(\"([a-z0-9-]+)\".*/{\"${pair%%:*}\", \"\2\"},/p
		s/^(U32|U64|REAL|ENUM|FLAG)\([a-z_]+, [a-z_0-9]+, \"([a-z0-9-]+)\".*/{\"${pair%%:*}\", \"\2\"},/p
		s/.*\.name = \"([a-z0-9-]+)\".*/{\"${pair%%:*}\", \"\1\"},/p" "${pair#*:}"
done

#!/bin/sh
# Print a row {"PROGRAM", "option", "old-name"} for each option of each program, from the option
# tables in the sources. If the option never had another name, the last column is NULL.
# common/opt.c includes the output. Usage: opt_names.sh PROGRAM:FILE...
set -eu
for pair; do
	awk -v program="${pair%%:*}" '
	function quoted(part) {
		split(substr($0, RSTART, RLENGTH), part, "\"")
		return "\"" part[2] "\""
	}
	function print_row() {
		if (name)
			printf "{\"%s\", %s, %s},\n", program, name, was
	}
	match($0, /(^|[^A-Z0-9_])(TEXT|INT|REAL|ENUM|FLAG)\("[a-z0-9-]+"/) ||
	match($0, /^(U32|U64|REAL|ENUM|FLAG)\([a-z_]+, [a-z_0-9]+, "[a-z0-9-]+"/) ||
	match($0, /\.name = "[a-z0-9-]+"/) {
		print_row()
		name = quoted()
		was = "NULL"
	}
	match($0, /\.was = "[a-z0-9-]+"/) { was = quoted() }
	END { print_row() }' "${pair#*:}"
done

#!/bin/sh
# Check rules about code for which C allows several forms: sizeof(x) has parentheses; bounds are
# named min and max, in Python too; a variable for the status of a call (0 or a status of err.h) is
# named `rc`; no two files of the programs have a static function, a function of an anonymous
# namespace or a kernel of the same name, so that a search and a backtrace find the right one.
set -u
find tests worker deploy -name '*.py' 2>/dev/null | sort | xargs /usr/bin/python3 -c '
import re, sys, tokenize
found = [f"{name}:{t.start[0]}: {t.string}: a bound is min or max" for name in sys.argv[1:]
         for t in tokenize.generate_tokens(open(name, encoding="utf-8").readline)
         if t.type == tokenize.NAME and re.match("(most|least)(_|$)", t.string)]
print(*found, sep="\n", end="\n" if found else "")
sys.exit(bool(found))'
in_python=$?
"$(dirname "$0")/code.sh" | awk '
	BEGIN { own = "^(common|proto|kernels|server|worker)/[^:]*\\.(c|h|cu|cuh): (static|inline|constexpr|__(global|device|host|forceinline)__) " }
	function finding(why) { print $0 ": " why; found = 1 }
	{ gsub(/"([^"\\]|\\.)*"/, "\"\"") }
	/(^|[^A-Za-z0-9_])sizeof[^A-Za-z0-9_(]/ { finding("sizeof(x) with parentheses") }
	/[^A-Za-z0-9_](most_?|least_?|MOST_[A-Z_]*|LEAST_[A-Z_]*)([^A-Za-z0-9_]|$)/ { finding("a bound is min or max") }
	/^[^ ]*: [ \t]+int (r|res|ret|result|status) = [a-z_0-9]+\(/ { finding("rc is the name for a status") }
	{ gsub(/__launch_bounds__\([^)]*\)+/, "") }
	/^[^ ]*: namespace$/ { anonymous = $1 }
	anonymous == $1 && /^[^ ]*: [a-z_][a-z_0-9]* [^;={]*[a-z_0-9]+\([^;]*$/ && $0 !~ own {
		sub(/: /, ": static ")
	}
	open { open = 0; sub(/:[ \t]+/, ": static ") } # the second line of a declaration
	$0 !~ own { next }
	!/[=;"({]/ { open = 1 }
	match($0, /^[^=;"(]*[ *&][a-z_0-9]+\(/) {
		file = substr($1, 1, length($1) - 1)
		match($0, /[a-z_0-9]+\(/)
		name = substr($0, RSTART, RLENGTH - 1)
		if (name in where && where[name] != file)
			finding("static in " where[name] ", too")
		where[name] = file
	}
	END { exit found }' && exit $in_python

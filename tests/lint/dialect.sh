#!/bin/sh
# Check rules about code for which C allows several forms: sizeof(x) has parentheses; bounds are
# named min and max, in Python too; a variable for the status of a call (0 or a status of err.h) is
# named `rc`; underscores join the words of a log event; the name of a static function, a function of
# an anonymous namespace, a kernel or a test is the name of no function in another file, so that a
# search and a backtrace find the right one.
set -u
find tests worker deploy -name '*.py' 2>/dev/null | sort | xargs /usr/bin/python3 -c '
import re, sys, tokenize
found = [f"{name}:{t.start[0]}: {t.string}: a bound is min or max" for name in sys.argv[1:]
         for t in tokenize.generate_tokens(open(name, encoding="utf-8").readline)
         if t.type == tokenize.NAME and re.match("(most|least)(_|$)", t.string, re.I)]
print(*found, sep="\n", end="\n" if found else "")
sys.exit(bool(found))'
in_python=$?
"$(dirname "$0")/code.sh" | awk '
	BEGIN { own = "^[^ ]*: (static|inline|constexpr|__(global|device|host|forceinline)__) " }
	function finding(why) { print $0 ": " why; found = 1 }
	/log_(debug|info|warn|error)\("[^"]*", "[^"]*-/ { finding("a log event has underscores, no hyphens") }
	{ gsub(/"([^"\\]|\\.)*"/, "\"\"") }
	/(^|[^A-Za-z0-9_])sizeof[^A-Za-z0-9_(]/ { finding("sizeof(x) with parentheses") }
	/[^A-Za-z0-9_](most_?|least_?|(MOST|LEAST)(_[A-Z_]*)?)([^A-Za-z0-9_]|$)/ { finding("a bound is min or max") }
	/^[^ ]*: [ \t]+(int (r|res|ret|result|status)|res|ret|status) = [a-z_0-9]+\(/ { finding("rc is the name for a status") }
	{
		gsub(/__launch_bounds__\([^)]*\)+/, "")
		sub(/: (PS_CLONES|\[\[noreturn\]\]|__attribute__\(\([a-z_()0-9]*\)\)) static /, ": static ")
		sub(/: (TEST|TEST_IN)\($/, ": static test")
		if (sub(/: (TEST|TEST_IN)\(/, ": static test "))
			sub(/[,)]/, "(")
	}
	/^[^ ]*: namespace$/ { anonymous = $1; depth = 0; next }
	anonymous == $1 {
		line = $0
		depth += gsub(/{/, "", line) - gsub(/}/, "", line)
		if (depth == 0)
			anonymous = ""
	}
	anonymous == $1 && /^[^ ]*: [A-Za-z_][A-Za-z_0-9]* [^;={]*[a-z_0-9]+\([^;]*$/ && $0 !~ own {
		sub(/: /, ": static ")
	}
	open { # the second line of a declaration
		open = 0
		sub(/:[ \t]+/, ": static ")
		if (is_test)
			sub(/[,)]/, "(")
	}
	$0 !~ own {
		if (match($0, /^[^ ]*: [A-Za-z_][A-Za-z_0-9 *]*[ *][a-z_0-9]+\(/) && $0 !~ /: (typedef|return|extern|else) /) {
			name = substr($0, 1, RLENGTH - 1)
			sub(/.*[ *]/, "", name)
			shared[name] = $1
		}
		next
	}
	!/[=;"({]/ { open = 1; is_test = / test$/ }
	match($0, /^[^=;"(]*[ *&][a-z_0-9]+\(/) {
		file = substr($1, 1, length($1) - 1)
		match($0, /[a-z_0-9]+\(/)
		name = substr($0, RSTART, RLENGTH - 1)
		if (name in where && where[name] != file)
			finding("static in " where[name] ", too")
		where[name] = file
	}
	END {
		for (name in where)
			if (name != "main" && name in shared && shared[name] != where[name] ":") {
				print where[name] ": " name " is a function in " shared[name] " too"
				found = 1
			}
		exit found
	}' && exit $in_python

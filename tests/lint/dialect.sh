#!/bin/sh
# One way to write what C lets one write in several: sizeof(x).
set -u
"$(dirname "$0")/code.sh" | awk '
	function finding(why) { print $0 ": " why; found = 1 }
	{ gsub(/"([^"\\]|\\.)*"/, "\"\"") }
	/(^|[^A-Za-z0-9_])sizeof[^A-Za-z0-9_(]/ { finding("sizeof(x) with parentheses") }
	END { exit found }'

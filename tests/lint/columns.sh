#!/bin/sh
# Find lines of documents with more than 100 columns, also in tables and code. A URL does not count.
find . \( -name '.?*' -o -path ./build -o -path ./data \) -prune -o -name '*.md' -print | sort |
	xargs /usr/bin/python3 -c '
import re, sys

found = 0
for path in sys.argv[1:]:
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        columns = len(re.sub(r"https?://[^]\s)>]*", "", line.rstrip("\n")).expandtabs(8))
        if columns > 100:
            print(f"{path[2:]}:{number}: {columns} columns")
            found = 1
sys.exit(found)'

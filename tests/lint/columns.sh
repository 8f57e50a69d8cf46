#!/bin/sh
# Find lines of documents and of the comment that `make help` prints with more than 100 columns, also
# in tables and code, and comments in C files that pass column 100, which clang-format leaves as they
# are. A URL does not count towards the 100 columns.
find . \( -name '.?*' -o -path ./build -o -path ./data -o -path ./tests/fixtures \) -prune -o \
	\( -name '*.md' -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o \
	-path ./Makefile \) -print | sort |
	xargs /usr/bin/python3 -c '
import re, sys

found = 0
for path in sys.argv[1:]:
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if path == "./Makefile" and line == "\n":
            break
        columns = len(re.sub(r"https?://[^]\s)>]*", "", line.rstrip("\n")).expandtabs(8))
        is_text = path.endswith((".md", "Makefile")) or re.match(r"\s*(\*[ /]|.*/\*)", line)
        if columns > 100 and is_text:
            print(f"{path[2:]}:{number}: {columns} columns")
            found = 1
sys.exit(found)'

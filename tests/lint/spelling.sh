#!/bin/sh
# Find misspelt words in code, comments and documents, with codespell. The variable `right` lists
# correct words that codespell would report.
set -u
right=nd
find . -path ./.git -prune -o -path "*.min.js" -prune -o -path ./build -prune -o -path ./data -prune -o -type f \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.sh' -o -name '*.md' \
	-o -name '*.mk' -o -name '*.yaml' -o -name '*.proto' -o -name '*.def' -o -name '*.js' -o -name '*.html' -o -name Makefile \) -print | sort |
	xargs codespell --ignore-words-list "$right"

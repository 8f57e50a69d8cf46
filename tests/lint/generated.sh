#!/bin/sh
# Find generated files outside build/: tools must write all files to build/. The lint ignores paths
# such as "/keys/" that .gitignore names from the root, because the user makes them with the
# commands of README.md.
own=""
for path in $(sed -n 's|^\(/.*[^/]\)/*$|.\1|p' .gitignore 2>/dev/null); do # the shell expands *
	[ ! -e "$path" ] || own="$own -o -path $path"
done
# shellcheck disable=SC2086 # each path is one word
found=$(find . \( -path ./.git -o -path ./tests/fixtures -o -path ./build -o -path ./data -o -name __pycache__ \
	-o -name .pytest_cache $own \) -prune -o -type f \( -name '*.pb-c.[ch]' -o -name '*_pb2.py' \
	-o -name '*.[oad]' -o -name '*.so' -o -name '*.safetensors' -o -name 'ckpt-*' \
	-o -name '*.gz' -o -name '*.tmp' \) -print)
[ -z "$found" ] || {
	echo "$found" | sed 's/$/: generated, should not be in the tree/'
	exit 1
}

#!/bin/sh
# Nothing that a tool makes lies in the tree: it belongs into build/.
found=$(find . \( -path ./.git -o -path ./build -o -path ./data -o -name __pycache__ \
	-o -name .pytest_cache \) -prune -o -type f \( -name '*.pb-c.[ch]' -o -name '*_pb2.py' \
	-o -name '*.[oad]' -o -name '*.so' -o -name '*.safetensors' -o -name 'ckpt-*' \
	-o -name '*.gz' -o -name '*.tmp' \) -print)
[ -z "$found" ] || {
	echo "$found" | sed 's/$/: generated, should not be in the tree/'
	exit 1
}

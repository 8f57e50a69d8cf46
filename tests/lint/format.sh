#!/bin/sh
# Every C file is as clang-format would write it. `clang-format -i FILE` mends it.
find common proto kernels server worker tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
	sort | xargs clang-format --dry-run -Werror

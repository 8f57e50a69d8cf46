#!/bin/sh
# Check that clang-format would not change any C file. To repair a file: `clang-format -i FILE`.
find common proto kernels server worker tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
	sort | xargs clang-format --dry-run -Werror

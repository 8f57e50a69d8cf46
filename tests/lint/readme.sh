#!/bin/sh
# The documents say what the programs say: docs/options.md is their --help, word for word (`make
# docs/options.md` writes it); README's options exist there, and the files that README and the pages
# for contributors name are there. CONTRIBUTING.md's table has every package that deploy/setup.sh
# installs, docs/README.md links every document, kernels/README.md has a line for every CUDA kernel.
set -u
bin=${1:-build/release}
failed=0
[ $# -gt 0 ] || make -s -j "$(nproc)" FLAVOUR=release all >&2

say() {
	echo "readme: $*"
	failed=1
}

tests/lint/options.sh "$bin" | diff docs/options.md - || say "docs/options.md is not what --help says"

for doc in README.md SECURITY.md; do
	for option in $(grep -v 'pkg-config --' $doc | grep -oE '(^|[^-a-z])--[a-z][a-z-]+' | grep -oE -e '--.*' | sort -u); do
		grep -qE -e "(^|[^-a-z])(--\[no-]|--)${option#--}([^-a-z]|$)" docs/options.md ||
			say "$doc: $option is not an option of any program"
	done
done

for doc in README.md CONTRIBUTING.md SECURITY.md kernels/README.md; do
	for path in $(grep -oE '(`|\]\()[a-z]+/[A-Za-z0-9_./*-]+' $doc | sed 's/^[]`(]*//' | sort -u); do
		case $path in build/* | data/*) continue ;; esac
		# shellcheck disable=SC2086 # a * in a name is a pattern
		ls -d $path >/dev/null 2>&1 || say "$doc: $path does not exist"
	done
done

for package in $(deploy/setup.sh list); do
	grep -qE "(^|[^-a-z0-9])$package([^-a-z0-9]|$)" CONTRIBUTING.md ||
		say "CONTRIBUTING.md: does not say why $package is there"
done

for doc in $(find . \( -name '.?*' -o -path ./build -o -path ./data \) -prune -o \
	-name '*.md' -print | sort); do
	case $doc in
	./docs/README.md) continue ;;
	./docs/*) link=${doc#./docs/} ;;
	*) link=..${doc#.} ;;
	esac
	grep -qF "]($link)" docs/README.md || say "docs/README.md: does not list $doc"
done

# Names that end in _kernel: only kernels have such names.
kernels=$(find kernels/cuda -name '*.cu' -exec grep -ohE '\b[a-z0-9_]+_kernel\b' {} +)
for kernel in $(echo "$kernels" | sort -u); do
	grep -qE "^    $kernel " kernels/README.md ||
		say "kernels/README.md: does not show how $kernel maps to blocks"
done
for kernel in $(grep -oE '^    [a-z0-9_]+_kernel ' kernels/README.md | sort -u); do
	grep -rqw "$kernel" kernels/cuda || say "kernels/README.md: there is no $kernel"
done
exit $failed

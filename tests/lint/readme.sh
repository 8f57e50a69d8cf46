#!/bin/sh
# Check the documents against the programs. docs/options.md is the programs' --help, word for word
# (`make docs/options.md` writes it). docs/options.md has every option that README names. The files
# that README and the pages for contributors name exist. `make help` lists every target that a
# document names. CONTRIBUTING.md's table has the packages that the scripts of deploy/ install.
# docs/README.md links every document. kernels/README.md has a line for every CUDA kernel
# of kernels/ and server/device/.
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
		# shellcheck disable=SC2086 # a name with * is a pattern
		ls -d $path >/dev/null 2>&1 || say "$doc: $path does not exist"
	done
done

for package in $(deploy/setup.sh list); do
	grep -qE "(^|[^-a-z0-9])$package([^-a-z0-9]|$)" CONTRIBUTING.md ||
		say "CONTRIBUTING.md: does not say why $package is there"
done
for package in $(sed -n '/^| Package/,$s/^| \([a-z0-9][^|]*\) |.*/\1/p' CONTRIBUTING.md | tr -d ,); do
	{ deploy/setup.sh list; cat deploy/docker_engine.sh deploy/Dockerfile; } |
		grep -qE "(^|[^-a-z0-9])$package([^-a-z0-9]|$)" ||
		say "CONTRIBUTING.md: nothing installs $package"
done

# The targets of all `make TARGET` in code spans and code blocks, without variables and -j.
targets=$(find . \( -name '.?*' -o -path ./build -o -path ./data \) -prune -o -name '*.md' -print |
	xargs awk '/^```/ { block = !block }
		block && /^make / { print }
		!block { n = split($0, span, "`"); for (i = 2; i <= n; i += 2) if (span[i] ~ /^make /) print span[i] }' |
	sed 's/#.*//; s/^make //' | tr ' ' '\n' | grep -xE '[a-z][a-z_./-]*' | grep -v '^build/' | sort -u)
help=$(make -s help)
for target in $targets; do
	echo "$help" | grep -qE "(^|[^-a-z])$target([^-a-z]|$)" || say "make help: does not list $target"
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

# All names that end in _kernel are names of kernels.
kernels=$(find kernels/cuda kernels/ladder server/device -name '*.cu' -exec grep -ohE '\b[a-z0-9_]+_kernel\b' {} +)
for kernel in $(echo "$kernels" | sort -u); do
	grep -qE "^    $kernel " kernels/README.md ||
		say "kernels/README.md: does not show how $kernel maps to blocks"
done
for kernel in $(grep -oE '^    [a-z0-9_]+_kernel ' kernels/README.md | sort -u); do
	grep -rqw "$kernel" kernels/cuda kernels/ladder server/device || say "kernels/README.md: there is no $kernel"
done
exit $failed

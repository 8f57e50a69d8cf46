#!/bin/sh
# docs/options.md: what the three programs in the given build directory answer to --help.
set -eu
bin=${1:-build/release}
cat <<'END'
# Options

Written by `make docs/options.md` from the programs' own tables: what `--help` says. Each option can also be set in the
environment; the command line wins.
END
for program in cnn-ps cnn-worker cnn-ctl; do
	printf '\n## %s\n\n<!-- not run: what --help prints; make lint compares it -->\n```\n' $program
	"$bin/$program" --help
	echo '```'
done

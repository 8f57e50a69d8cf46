#!/bin/sh
# Print docs/options.md: the output of --help of the three programs in the given build directory.
set -eu
bin=${1:-build/release}
cat <<'END'
# Options

This page has the output of `--help` of each program; `make docs/options.md` writes it. An option
can also be set in the environment. The command line has priority.
END
for program in cnn-ps cnn-worker cnn-ctl; do
	printf '\n## %s\n\n```text\n' $program
	"$bin/$program" --help
	echo '```'
done

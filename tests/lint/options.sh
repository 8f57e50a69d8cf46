#!/bin/sh
# Print docs/options.md: the output of --help of the three programs in the given build directory.
set -eu
bin=${1:-build/release}
cat <<'END'
# Options

This page has the output of `--help` of each program; `make docs/options.md` writes this page. An
option can also be set by the environment variable in parentheses after its text. The command line
has priority. A default can depend on other options, as in "default with --optimizer sgd: 0.2, else
with --mode sync: 0.3, otherwise 0.03": the first condition that is true determines the default. A
lease is a piece of work that the server gives to one worker. [glossary.md](glossary.md) defines the
other terms.
END
for program in cnn-ps cnn-worker cnn-ctl; do
	printf '\n## %s\n\n```text\n' $program
	"$bin/$program" --help
	echo '```'
done

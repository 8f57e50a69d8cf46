#!/bin/sh
# Check that every patch in tests/sim/mutants and tests/mutants applies exactly. Each patch adds a
# bug to the source.
failed=0
for mutant in tests/sim/mutants/*.patch tests/mutants/*.patch; do
	[ -e "$mutant" ] || continue
	patch -s -p1 -F 0 --dry-run --force <"$mutant" >/dev/null 2>&1 || {
		echo "$mutant: does not apply"
		failed=1
	}
done
exit $failed

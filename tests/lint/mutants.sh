#!/bin/sh
# Every bug that tests/sim/mutants keeps as a patch still applies to the source.
failed=0
for mutant in tests/sim/mutants/*.patch; do
	[ -e "$mutant" ] || continue
	patch -s -p1 --dry-run --force <"$mutant" >/dev/null 2>&1 || {
		echo "$mutant: does not apply"
		failed=1
	}
done
exit $failed

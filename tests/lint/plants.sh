#!/bin/sh
# Every bug that tests/sim/plants keeps as a patch can still be planted: all of its hunks apply.
failed=0
for plant in tests/sim/plants/*.patch; do
	[ -e "$plant" ] || continue
	patch -s -p1 --dry-run --force <"$plant" >/dev/null 2>&1 || {
		echo "$plant: does not apply to what it is a bug of"
		failed=1
	}
done
exit $failed

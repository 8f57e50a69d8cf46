#!/bin/sh
# Check that each kernel that kx_launch launches calls await_previous. Such a kernel starts before
# the previous kernel has ended. Without this call the kernel may read values that the previous
# kernel has not written yet, an error that tests rarely find.
find kernels -name '*.cu' | sort | while read -r f; do
	sed -n 's/.*kx_launch[a-z_]*(\([a-z0-9_]*\).*/\1/p' "$f" | sort -u | while read -r kernel; do
		awk -v kernel="$kernel" '
			/__global__/ { head = 1; text = "" }
			head { text = text $0 "\n" }
			/^}/ && head {
				head = 0
				if (text ~ kernel "\\(") { seen = 1; good = text ~ /await_previous\(\)/ }
			}
			END { exit !(seen && good) }' "$f" ||
			echo "$f: $kernel is launched by kx_launch and does not await_previous"
	done
done | grep . && exit 1
exit 0

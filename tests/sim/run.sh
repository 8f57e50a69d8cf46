#!/bin/sh
# Run many seeds of every mode: tests/sim/run.sh SECONDS [SEEDS [FIRST]]. The script runs at most
# SEEDS seeds in total (by default 10,000,000), from seed FIRST on (by default 1), on all
# processors, for about SECONDS seconds. The script prints its progress. At the end it prints one
# line for each mode and one for all modes, with the number of seeds, the seeds per second and the
# violations. The exit status is 1 if there was a violation. The script also works outside the
# checkout, beside `sim` and `lib`, so that it can be copied to another machine.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:?usage: run.sh SECONDS [SEEDS [FIRST]]}
seeds=${2:-10000000}
first=${3:-1}
sim=$here/../../build/release/tests/sim/sim
[ -x "$here/sim" ] && sim=$here/sim
[ -d "$here/lib" ] && export LD_LIBRARY_PATH="$here/lib"
modes="ledger downpour ssp sync sandblaster lbfgs easgd"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
jobs=$(nproc)
chunk=$((jobs * 1000))
each=$(((seeds + 6) / 7))
begin=$(date +%s)

# Run one chunk of seeds of each mode in turn, so that all modes have run about as many seeds when
# the time is up. No two modes run the same seeds. A violation ends the chunk in which it happens,
# and the seeds of this chunk before the violation count as done.
at=0
while [ "$at" -lt "$each" ] && [ $(($(date +%s) - begin)) -lt "$seconds" ]; do
	n=$((each - at < chunk ? each - at : chunk))
	number=0
	for mode in $modes; do
		from=$((first + number * 100000000 + at))
		number=$((number + 1))
		start=$(date +%s%N)
		"$sim" --seeds "$from..$((from + n - 1))" --mode "$mode" --jobs "$jobs" >"$out/run" 2>&1
		rc=$?
		took=$((($(date +%s%N) - start) / 1000000))
		if [ "$rc" -eq 0 ]; then
			echo "$n $took 0" >>"$out/$mode"
		else
			cat "$out/run"
			failed=$(sed -n 's/^FAIL seed=\([0-9]*\).*/\1/p' "$out/run")
			echo "$((${failed:-$from} - from)) $took 1" >>"$out/$mode"
		fi
	done
	at=$((at + n))
	echo "$at of $each seeds of each mode after $(($(date +%s) - begin)) s"
done

for mode in $modes; do
	[ -f "$out/$mode" ] && sed "s/^/$mode /" "$out/$mode"
done | awk -v jobs="$jobs" '
	{ seeds[$1] += $2; ms[$1] += $3; bad[$1] += $4; all += $2; all_ms += $3; all_bad += $4 }
	function line(name, n, t, v, rate) {
		rate = 1000 * n / (t ? t : 1)
		printf "%-12s %9d seeds %9.1f s %8.0f seeds/s %6.0f seeds/s/core %d violations\n",
			name, n, t / 1000, rate, rate / jobs, v
	}
	END {
		for (m in seeds)
			line(m, seeds[m], ms[m], bad[m])
		line("all", all, all_ms, all_bad)
		exit all_bad > 0
	}'

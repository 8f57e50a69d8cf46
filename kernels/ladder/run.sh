#!/bin/sh
# Measure every stage of the ladder, and draw what docs/ladder.md shows.
#
#   run.sh CNN_LADDER DIR     measure into DIR/*.csv; also draw if gnuplot is installed
#   run.sh --draw DIR         draw DIR/*.svg from DIR/*.csv, and print the table of docs/ladder.md
#
# Variables: RUNS (5), the measurements of each rung at each point; SECONDS_EACH (0.5), the seconds
# of a measurement; TRAIN_SECONDS (3), the training time of each rung; LIBRARY_PYTHON (python3), a
# Python with PyTorch for this GPU. Without such a Python there are no rows of cuDNN. The data set
# is in $CNN_DATA or in one of the default directories. Without a GPU the script measures only
# stages 0 and 1, and writes no memory.csv.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Debian's Python, which has the package python3-numpy
python=${PYTHON:-/usr/bin/python3}

draw() {
	# pictures.py runs first, because it refuses a data set other than the table's
	"$python" "$here/pictures.py" "$1/predictions.csv" >"$1/predictions.svg.tmp" || {
		status=$?
		rm "$1/predictions.svg.tmp"
		exit $status
	}
	gnuplot -e "dir='$1'" "$here/figures.gp"
	"$python" "$here/table.py" "$1/steps.csv"
	mv "$1/predictions.svg.tmp" "$1/predictions.svg"
}

if [ "$1" = --draw ]; then
	draw "$2"
	exit
fi
ladder=$1 dir=$2
runs=${RUNS:-5} each=${SECONDS_EACH:-0.5} train=${TRAIN_SECONDS:-3} rate=${RATE:-0.02}
mkdir -p "$dir"

# Run a command and append its rows, without the header, to a table that already has the header.
append() {
	table=$1
	shift
	"$@" >"$table.tmp"
	tail -n +2 "$table.tmp" >>"$table"
	rm "$table.tmp"
}

# machine.txt has the name of the machine for the figures.
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || gpu=""
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
echo "${gpu:+one $gpu, }$(nproc) cores${cpu:+ of $cpu}" >"$dir/machine.txt"
"$python" "$here/stage0.py" steps --seconds "$each" --runs "$runs" >"$dir/steps.csv"
append "$dir/steps.csv" "$ladder" steps --seconds "$each" --runs "$runs" --phases "$dir/phases.csv"
library=${LIBRARY_PYTHON:-python3}
if "$library" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
	append "$dir/steps.csv" "$library" "$here/library.py" --seconds "$each" --runs "$runs"
fi
"$ladder" cores --seconds "$each" --runs "$runs" >"$dir/cores.csv"
# the time of each kernel of the production rung, if Nsight Compute is installed
if command -v ncu >/dev/null && grep -q ^production, "$dir/steps.csv"; then
	ncu --clock-control none --graph-profiling node --metrics gpu__time_duration.sum --csv \
		"$ladder" steps --rung production --filters 256 --batch 1000 --seconds 0 >"$dir/ncu.csv"
	grep -v '^production,256,1000,' "$dir/phases.csv" >"$dir/phases.csv.tmp"
	"$python" "$here/profile.py" "$dir/ncu.csv" "$dir/steps.csv" >>"$dir/phases.csv.tmp"
	mv "$dir/phases.csv.tmp" "$dir/phases.csv"
	rm "$dir/ncu.csv"
fi
"$python" "$here/stage0.py" train --seconds "$train" --rate "$rate" >"$dir/predictions.csv"
append "$dir/predictions.csv" "$ladder" train --seconds "$train" --rate "$rate"
if grep -q ^graph, "$dir/steps.csv"; then
	"$ladder" memory >"$dir/memory.csv"
else
	rm -f "$dir/memory.csv" "$dir/memory.svg"
fi
if command -v gnuplot >/dev/null; then
	draw "$dir"
else
	echo "run.sh: no gnuplot here: draw with run.sh --draw $dir" >&2
fi

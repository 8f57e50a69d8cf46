#!/bin/bash
# Train a small network for 3 epochs: one server, two CPU workers, all on this machine.
#
# It needs the programs (make), and finds the images with data.sh. On a terminal the server draws a
# progress bar. The script ends all processes that it starts, by their ids, within 4 minutes.
set -eu
cd "$(dirname "$0")/.."
bin=build/release
limit=240 # seconds
tmp=$(mktemp -d)
pids=""

cleanup() {
	for pid in $pids; do
		kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# start COMMAND...: run it in the background with a time limit.
start() {
	timeout --kill-after 5 $limit "$@" &
	pids="$pids $!"
}

# The server's stderr is this terminal, for the progress bar, so the script cannot read the port
# from its log and chooses one here.
free_port() {
	while port=$(shuf -n 1 -i 20000-32000) && grep -q ":$(printf %04X "$port") " /proc/net/tcp; do
		:
	done
	echo "$port"
}

# field NAME: print a field of the server's final JSON line.
field() {
	sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p" "$tmp/result"
}

data=$(deploy/data.sh)
endpoint=tcp://127.0.0.1:$(free_port)
start $bin/cnn-ps --bind "$endpoint" --model seed:32 --epochs 3 --seed 7 --min-workers 2 \
	--checkpoint-dir "$tmp/checkpoints" >"$tmp/result"
server=$!
for n in 1 2; do
	start $bin/cnn-worker --server "$endpoint" --data "$data" --device cpu --threads 1 \
		2>"$tmp/worker$n"
done
echo "demo: processes$pids" >&2

while kill -0 $server 2>/dev/null; do
	wait -n || {
		echo "demo: a process ended early; the last lines of the workers' logs:" >&2
		tail -n 3 "$tmp/worker1" "$tmp/worker2" >&2
		exit 1
	}
done

labels=$(sha256sum "$data/t10k-labels-idx1-ubyte.gz" 2>/dev/null | cut -d ' ' -f 1)
case $data in
*fashion*) what="Fashion-MNIST (clothes: harder than digits)" ;;
*) if grep -q "^${labels:-none} " deploy/data.sh; then what="MNIST"; else what="own images"; fi ;;
esac
awk -v what="$what" -v dir="$data" -v accuracy="$(field accuracy)" -v seconds="$(field seconds)" \
	-v images="$(field images)" 'BEGIN {
	printf "data      %s, %s\n", what, dir
	printf "accuracy  %.2f %% of the 10,000 test images\n", 100 * accuracy
	printf "training  %.1f s, %d images/s\n", seconds, images / seconds
}'

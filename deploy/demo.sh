#!/bin/bash
# Train a small network: one server with its page, two CPU workers, all on this machine.
#
#   deploy/demo.sh              3 epochs of MNIST: some seconds
#   EPOCHS=200 deploy/demo.sh   long enough to open the page and to kill processes with kill -9
#
# The script needs the programs (`make` builds them), and finds the images with data.sh. On a
# terminal the server draws a progress bar. If a process dies from kill -9, the script starts it
# again after 3 s, as systemd would. The run stays in build/demo until the next demo. While another
# demo or a server uses this directory, or if it belongs to another user, the run is in a new
# temporary directory, which also stays. The script ends all processes that it starts, after at most
# 4 minutes plus 10 s for each epoch.
set -eu
cd "$(dirname "$0")/.."
bin=build/release
epochs=${EPOCHS:-3}
run=build/demo
case $epochs in
'' | 0* | *[!0-9]*)
	echo "demo: EPOCHS=$epochs: must be a number of epochs, at least 1" >&2
	exit 2
	;;
esac
for program in cnn-ps cnn-worker cnn-ctl; do
	[ -x "$bin/$program" ] || {
		echo "demo: $bin/$program is missing: run make" >&2
		exit 2
	}
done
limit=$((240 + 10 * epochs)) # seconds

# take DIR: make an empty directory, and lock it until all processes of this demo have ended. The
# server's own lock is not enough, because the server starts late, and again after kill -9.
take() {
	mkdir -p "$1" && [ -w "$1" ] && exec 4<"$1" && flock -n 4 &&
		{ [ ! -e "$1/LOCK" ] || flock -n "$1/LOCK" true; } && find "$1/" -mindepth 1 -delete
}
take "$run" 2>/dev/null || {
	other=$(mktemp -d)
	echo "demo: $run is in use or not writable: this run is in $other" >&2
	run=$other
}
tmp=$(mktemp -d)
pids=""
exec 3>&2 # for messages of the script where stderr is a log

cleanup() {
	for pid in $pids; do
		kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# keep NAME COMMAND...: run the command until it ends by itself or the time is over. If a signal
# kills the command, start it again.
keep() {
	local name=$1 status=137 child=""
	shift
	trap 'kill $child 2>/dev/null; wait $child; exit 143' TERM
	while :; do
		# shellcheck disable=SC2016 # the inner shell expands the variables
		timeout --foreground --kill-after 5 $((limit - SECONDS)) \
			sh -c 'echo $$ >"$0"; exec "$@"' "$tmp/$name" "$@" 3>&- &
		child=$!
		status=0
		wait $child 2>/dev/null || status=$?
		if [ $status -le 128 ] || [ $SECONDS -ge $((limit - 10)) ]; then
			exit $status
		fi
		echo "demo: $name died from kill -$((status - 128)) and starts again in 3 s" >&3
		sleep 3
	done
}

# start NAME COMMAND...: run `keep` in the background.
start() {
	rm -f "$tmp/$1"
	keep "$@" &
	pids="$pids $!"
}

# The server's stderr is this terminal, because the server draws its progress bar there. The script
# therefore cannot read the ports from the server's log, and chooses the ports itself.
free_port() {
	while port=$(shuf -n 1 -i 20000-32000) && grep -q ":$(printf %04X "$port") " /proc/net/tcp; do
		:
	done
	echo "$port"
}

# process NAME: print the id of the process that `keep` runs under this name now.
process() {
	until [ -s "$tmp/$1" ]; do
		sleep 0.05
	done
	cat "$tmp/$1"
}

# field NAME: print a field of the server's final JSON line.
field() {
	sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p" "$tmp/result"
}

fail() {
	echo "demo: a process ended early; the last lines of the workers' logs:" >&2
	tail -n 3 "$tmp/log1" "$tmp/log2" >&2
	exit 1
}

data=$(deploy/data.sh)
endpoint=tcp://127.0.0.1:$(free_port)
page=127.0.0.1:$(free_port)
start server $bin/cnn-ps --bind "$endpoint" --http "$page" --model seed:32 --epochs "$epochs" \
	--seed 7 --min-workers 2 --checkpoint-dir "$run" >"$tmp/result"
server=$!
for n in 1 2; do
	start worker$n $bin/cnn-worker --server "$endpoint" --data "$data" --device cpu --threads 1 \
		--name demo$n 2>>"$tmp/log$n"
done
# print the address when the page answers: a browser that comes earlier finds no server
for _ in $(seq 200); do
	grep -q ":$(printf %04X "${page##*:}") 00000000:0000 0A " /proc/net/tcp && break
	sleep 0.05
done
echo "demo: page http://$page/, server $endpoint" >&2
echo "demo: processes $(process server) (server) $(process worker1) $(process worker2) (workers)" >&2

while kill -0 $server 2>/dev/null; do
	status=0
	wait -n || status=$?
	case $status in
	0 | 12) ;; # 12: the status of a worker whose run was drained
	*) fail ;;
	esac
done
[ -s "$tmp/result" ] || fail # the server may have ended before the loop, or together with a worker

labels=$(sha256sum "$data/t10k-labels-idx1-ubyte.gz" 2>/dev/null | cut -d ' ' -f 1)
case $data in
*fashion*) what="Fashion-MNIST (clothes: harder than digits)" ;;
*) if grep -q "^${labels:-none} " deploy/data.sh; then what="MNIST"; else what="own images"; fi ;;
esac
# This is the time from the first worker in the history to the last line. The times in the server's
# result begin again at each start, so they are too short if a server was killed.
seconds=$($bin/cnn-ctl history "$run" |
	awk -F , '$2 == "worker" && !first { first = $1 } END { print ($1 - first) / 1000 }')
awk -v what="$what" -v dir="$data" -v accuracy="$(field accuracy)" -v seconds="$seconds" \
	-v images="$(field images)" 'BEGIN {
	printf "data      %s, %s\n", what, dir
	printf "accuracy  %.2f %% of the test images\n", 100 * accuracy
	printf "training  %.1f s, %d images/s\n", seconds, images / seconds
}'
echo "history   $bin/cnn-ctl history $run"
if $bin/cnn-ctl report "$run" >"$run/report.html"; then
	echo "report    $run/report.html, a page for a browser"
fi

#!/bin/sh
# Find or download the training images. Prints their directory on stdout, and messages on stderr.
#
# If $CNN_DATA is set, the script uses this directory. Otherwise it uses MNIST in data/mnist: it
# downloads missing files from public mirrors, and verifies all files with the checksums below. If
# no mirror answers, the script uses Debian's Fashion-MNIST, which has the same format as MNIST but
# is harder to learn. The script resumes a broken download. Each mirror that does not answer delays
# the script by at most 9 seconds.
set -eu
cd "$(dirname "$0")/.."

dir=$PWD/data/mnist
fashion=/usr/share/datasets/fashion-mnist
mirrors="${CNN_MIRRORS-https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist}"
# The smallest file is first, because it shows quickly whether a mirror answers.
sums="
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 t10k-labels-idx1-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 t10k-images-idx3-ubyte.gz
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 train-images-idx3-ubyte.gz"

say() {
	echo "data: $*" >&2
}

# good SUM FILE: succeed if FILE exists and has this checksum.
good() {
	[ -f "$2" ] && echo "$1  $2" | sha256sum --check --status -
}

# fetch URL FILE: download FILE, or resume the download of FILE.part. Give up after 4 seconds
# without data. FILE.part stays for the next attempt, unless the mirror cannot resume (curl's exit
# status 22 or 33).
fetch() {
	status=0
	curl --silent --show-error --fail --location --connect-timeout 4 --speed-limit 1000 \
		--speed-time 4 --continue-at - --output "$2.part" "$1" || status=$?
	case $status in 22 | 33) rm -f "$2.part" ;; esac
	return $status
}

# fetch_all MIRROR: download each missing file from this mirror.
fetch_all() {
	echo "$sums" | while read -r sum file; do
		[ -n "$sum" ] || continue
		! good "$sum" "$dir/$file" || continue
		if ! good "$sum" "$dir/$file.part"; then
			say "fetching $1/$file"
			fetch "$1/$file" "$dir/$file" || exit 1
		fi
		if ! good "$sum" "$dir/$file.part"; then
			say "$file from $1 has another sha256 than $sum: dropped"
			rm -f "$dir/$file.part"
			exit 1
		fi
		mv "$dir/$file.part" "$dir/$file"
	done
}

all_good() {
	echo "$sums" | while read -r sum file; do
		[ -z "$sum" ] || good "$sum" "$dir/$file" || exit 1
	done
}

if [ -n "${CNN_DATA-}" ]; then
	say "using \$CNN_DATA"
	echo "$CNN_DATA"
	exit 0
fi
if all_good; then
	say "MNIST is there"
	echo "$dir"
	exit 0
fi
why="no mirror of MNIST answers"
command -v curl >/dev/null || {
	why="curl is missing, so MNIST cannot be downloaded"
	mirrors=""
}
mkdir -p "$dir"
for mirror in $mirrors; do
	if fetch_all "$mirror"; then
		say "MNIST is complete"
		echo "$dir"
		exit 0
	fi
done
if [ -f "$fashion/train-images-idx3-ubyte.gz" ]; then
	say "$why: using Debian's Fashion-MNIST (clothes instead of digits)"
	echo "$fashion"
	exit 0
fi
say "$why, and $fashion is absent: set CNN_DATA to a directory of IDX files"
exit 1

#!/bin/sh
# Print the name of a local image of Debian bookworm. The script uses debian:bookworm-slim, and
# pulls it if necessary. If no registry answers, the script makes an image from Debian's packages
# with debootstrap (200 MB in half a minute), for which it needs root rights. Messages go to stderr.
set -eu
public=debian:bookworm-slim
own=cnn-ps-base:bookworm

there() {
	docker image inspect "$1" >/dev/null 2>&1
}

if there $public; then
	echo $public
	exit 0
fi
if there $own; then
	echo $own
	exit 0
fi
if timeout 60 docker pull -q $public >/dev/null 2>&1; then
	echo $public
	exit 0
fi
command -v debootstrap >/dev/null || {
	echo "base image: $public cannot be pulled, and debootstrap is missing" >&2
	exit 1
}
echo "base image: $public cannot be pulled: making $own with debootstrap" >&2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || {
	tail -n 3 "$root.log" >&2
	exit 1
}
rm -f "$root.log"
for suite in bookworm-updates bookworm-security; do
	archive=debian
	[ $suite = bookworm-updates ] || archive=debian-security
	echo "deb http://deb.debian.org/$archive $suite main"
done >>"$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import - $own >/dev/null
echo $own

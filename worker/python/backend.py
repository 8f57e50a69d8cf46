"""The build backend of the wheel (PEP 517). The wheel contains the Python files, libcnnps, cnn-ps
and cnn-ctl.

The backend needs no other Python package. The backend runs make to build the library and the
programs; deploy/wheel.sh later adds to the wheel the shared libraries that libcnnps and the
programs need. Builds from equal sources give wheels with equal bytes.
"""
import base64
import hashlib
import os
import platform
import re
import subprocess
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / os.environ.get("B", "build/release")
TAG = f"py3-none-linux_{platform.machine()}"
SCRIPTS = {"cnn-ps": "cnnps.programs:cnn_ps", "cnn-ctl": "cnnps.programs:cnn_ctl"}


def version():
    text = (ROOT / "common" / "version.h").read_text(encoding="utf-8")
    return re.search(r'PS_VERSION "(.*)"', text)[1].replace("-dev", ".dev0")  # PEP 440


def metadata():
    return (f"Metadata-Version: 2.1\nName: cnnps\nVersion: {version()}\n"
            "Summary: Asynchronous training with a cnn-ps parameter server\n"
            "Requires-Python: >=3.9\nRequires-Dist: numpy\n"
            "Provides-Extra: torch\nRequires-Dist: torch; extra == 'torch'\n"
            "Provides-Extra: progress\nRequires-Dist: tqdm; extra == 'progress'\n"
            "Provides-Extra: ray\nRequires-Dist: ray; extra == 'ray'\n")


def files():
    """Yields (name in the wheel, content, mode) of every file except RECORD."""
    info = f"cnnps-{version()}.dist-info"
    for path in sorted((HERE / "cnnps").glob("**/*")):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"cnnps/{path.relative_to(HERE / 'cnnps')}", path.read_bytes(), 0o644
    yield "cnnps/lib/libcnnps.so.0", (BUILD / "libcnnps.so.0").read_bytes(), 0o755
    for name in SCRIPTS:
        yield f"cnnps/bin/{name}", (BUILD / name).read_bytes(), 0o755
    scripts = "".join(f"{name} = {target}\n" for name, target in SCRIPTS.items())
    wheel = f"Wheel-Version: 1.0\nGenerator: cnnps\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    for name, text in (("METADATA", metadata()), ("WHEEL", wheel),
                       ("entry_points.txt", "[console_scripts]\n" + scripts)):
        yield f"{info}/{name}", text.encode(), 0o644


def build_wheel(directory, config_settings=None, metadata_directory=None):
    if not os.environ.get("CNNPS_BUILT"):
        subprocess.run(["make", "-C", ROOT, f"-j{os.cpu_count()}", "FLAVOUR=release", "library",
                        *(f"build/release/{name}" for name in SCRIPTS)], check=True,
                       stdout=subprocess.DEVNULL)
    name = f"cnnps-{version()}-{TAG}.whl"
    record = []
    with zipfile.ZipFile(Path(directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(path, content, mode):
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
        for path, content, mode in files():
            add(path, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{path},sha256={digest.decode()},{len(content)}\n")
        path = f"cnnps-{version()}.dist-info/RECORD"
        add(path, ("".join(record) + f"{path},,\n").encode(), 0o644)
    return name


def build_sdist(directory, config_settings=None):
    raise NotImplementedError("build the wheel in the source tree: make wheel")

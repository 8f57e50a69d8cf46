#!/usr/bin/env python3
"""Adds the licenses of the libraries in a wheel to the wheel.

    wheel_licenses.py WHEEL PROGRAM...

auditwheel has copied the libraries of each PROGRAM from packages of Debian or Ubuntu to the wheel.
The license of a library is the file `copyright` of its package; the wheel also gets the texts in
/usr/share/common-licenses to which this file refers. All of these texts and the license of cnn-ps
itself are in licenses/ of the wheel's dist-info. Exits with 1 if a license is missing.
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMON = "/usr/share/common-licenses/"


def originals(programs):
    """Returns {file name: path} for the libraries that the programs load."""
    found = {}
    for program in programs:
        text = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        for path in re.findall(r"=> (/\S+)", text):
            for one in (path, os.path.realpath(path)):
                found[os.path.basename(one)] = one
    return found


def package(path):
    """Returns the name of the Debian package that contains the file `path`. dpkg may list this file
    with or without /usr in front."""
    real = os.path.realpath(path)
    for one in (path, real, real.removeprefix("/usr"), "/usr" + real):
        done = subprocess.run(["dpkg", "-S", one], capture_output=True, text=True, check=False)
        if not done.returncode:
            return done.stdout.split(":")[0]
    raise SystemExit(f"wheel_licenses.py: {path} belongs to no package")


def licenses(names, programs):
    """Returns {name below licenses/: text} for the libraries with these names in the wheel."""
    # the license of dygraphs, too, because the status page of cnn-ps contains dygraphs
    own = (ROOT / "LICENSE", ROOT / "server/monitor/page/LICENSE.dygraphs")
    found = {path.name: path.read_bytes() for path in own}
    paths = originals(programs)
    for name in names:
        # remove the hash that auditwheel has put in front of the first dot
        original = re.sub(r"^([^.]+)-[0-9a-f]{8}\.", r"\1.", name)
        if original not in paths:
            raise SystemExit(f"wheel_licenses.py: no program loads {original}")
        owner = package(paths[original])
        text = Path(f"/usr/share/doc/{owner}/copyright").read_bytes()
        found[f"{owner}/copyright"] = text
        for other in re.findall(COMMON + r"([\w+-]+(?:\.\d+)*)", text.decode("utf-8", "replace")):
            if os.path.isfile(COMMON + other):
                found[f"common-licenses/{other}"] = Path(COMMON + other).read_bytes()
    return found


def main():
    wheel, programs = Path(sys.argv[1]), sys.argv[2:]
    with zipfile.ZipFile(wheel) as old:
        entries = [(entry, old.read(entry)) for entry in old.infolist()]
    names = [e.filename for e, _ in entries]
    record = next(name for name in names if name.endswith(".dist-info/RECORD"))
    info = record.rsplit("/", 1)[0]
    libraries = [n.split("/")[1] for n in names if re.match(r"\w+\.libs/.", n)]
    new = licenses(sorted(libraries), programs)
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as out:
        lines = ""
        for entry, content in entries:
            if entry.filename == record:
                lines, last = content.decode(), entry
            else:
                out.writestr(entry, content)
        for name, content in sorted(new.items()):
            entry = zipfile.ZipInfo(f"{info}/licenses/{name}", last.date_time)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            out.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines = f"{entry.filename},sha256={digest.decode()},{len(content)}\n" + lines
        out.writestr(last, lines)
    part.replace(wheel)


if __name__ == "__main__":
    main()

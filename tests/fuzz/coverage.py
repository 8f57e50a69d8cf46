#!/usr/bin/python3
"""Print the percentage of the lines of each file that the committed corpora of TARGETS reach.

  make fuzz-coverage      build with gcov (FLAVOUR=cover), replay the corpora, print

The script exits with 1 if the corpora reach less than the required percentage of a part in PARTS.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/cover"
TARGETS = ["wire", "session", "core", "snapshot"]  # COVER_TARGETS of fuzz.mk
# {part: (its files, the minimum percentage of their lines that the corpora must reach)}
PARTS = {
    "wire": (["proto/decode.c", "proto/schema.c", "proto/checksum.c", "proto/encode.c"], 90),
    "session": (["worker/client/session.c"], 90),
    "core": (["server/core/*.c"], 90),
}
LEFT_OUT = ["snapshot_v5.c"]  # no target uses it


def replay():
    for data in BUILD.rglob("*.gcda"):
        data.unlink()
    for target in TARGETS:
        subprocess.run([BUILD / "tests/fuzz" / target, ROOT / "tests/fuzz/corpus" / target],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=600)


def lines_of(source):
    """Returns (number of lines that ran, number of lines) of a C file."""
    notes = BUILD / source.with_suffix(".gcno").relative_to(ROOT)
    text = subprocess.run(["gcov", "-n", notes], capture_output=True, text=True, cwd=ROOT,
                          check=True).stdout
    name = str(source.relative_to(ROOT))
    found = re.search(rf"File '{re.escape(name)}'\nLines executed:([\d.]+)% of (\d+)", text)
    n = int(found[2]) if found else 0
    return (round(float(found[1]) * n / 100), n) if found else (0, 0)


def main():
    replay()
    failed = 0
    for part, (patterns, min_share) in PARTS.items():
        ran = total = 0
        for source in sorted(f for p in patterns for f in ROOT.glob(p) if f.name not in LEFT_OUT):
            a, b = lines_of(source)
            ran, total = ran + a, total + b
            print(f"  {source.relative_to(ROOT)!s:36} {a:5} of {b:5} lines")
        share = 100 * ran / max(total, 1)
        failed |= share < min_share
        print(f"{part}: {share:.1f} % of {total} lines (at least {min_share} %)")
    sys.exit(failed)


if __name__ == "__main__":
    main()

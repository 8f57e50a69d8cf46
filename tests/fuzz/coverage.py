#!/usr/bin/python3
"""Print the percentage of the lines of each file that the committed corpora of TARGETS reach.

  make fuzz-coverage      build with gcov (FLAVOUR=cover), replay the corpora, print

The script exits with 1 if the corpora reach less than the required percentage of a part in PARTS.
A part has all C files of a folder, or a single file, and the code in their headers.
"""
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/cover"
TARGETS = ["wire", "session", "core", "snapshot", "checkpoint"]  # COVER_TARGETS of fuzz.mk
# {part: (its files, the minimum percentage of their lines that the corpora must reach)}
PARTS = {
    "wire": ("proto/*.[ch]", 90),
    "session": ("worker/client/session.[ch]", 90),
    "core": ("server/core/*.[ch]", 90),
    # lower, because the target has no write-ahead log of 0.1.0
    "upgrade": ("server/durability/upgrade.c", 75),
}


def replay():
    for data in BUILD.rglob("*.gcda"):
        data.unlink()
    for target in TARGETS:
        subprocess.run([BUILD / "tests/fuzz" / target, ROOT / "tests/fuzz/corpus" / target],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=600)


def count_lines():
    """Returns {path: {line: times that it ran}}. The code of a header is in several objects."""
    found = defaultdict(lambda: defaultdict(int))
    sources = [f for pattern, _ in PARTS.values() for f in ROOT.glob(pattern) if f.suffix == ".c"]
    notes = [BUILD / f.with_suffix(".gcno").relative_to(ROOT) for f in sources]
    text = subprocess.run(["gcov", "--json-format", "--stdout", *notes], capture_output=True,
                          text=True, cwd=ROOT, check=True).stdout
    for line in text.splitlines():
        for source in json.loads(line)["files"]:
            for counted in source["lines"]:
                found[ROOT / source["file"]][counted["line_number"]] += counted["count"]
    missing = [f for f in sources if f not in found]
    if missing:
        sys.exit(f"no figures for {missing[0]}")
    return found


def main():
    replay()
    lines = count_lines()
    failed = 0
    for part, (pattern, min_share) in PARTS.items():
        ran = total = 0
        for source in sorted(f for f in ROOT.glob(pattern) if f in lines):
            a, b = sum(n > 0 for n in lines[source].values()), len(lines[source])
            ran, total = ran + a, total + b
            print(f"  {source.relative_to(ROOT)!s:36} {a:5} of {b:5} lines")
        share = 100 * ran / max(total, 1)
        failed |= share < min_share
        print(f"{part}: {share:.1f} % of {total} lines (at least {min_share} %)")
    sys.exit(failed)


if __name__ == "__main__":
    main()

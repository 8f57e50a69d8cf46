#!/usr/bin/python3
"""Fill in docs/faults.md: behind each row its tests and their figures in build/faults/results.tsv.

    tests/fault/table.py [RESULTS.tsv]

A row is a line `| P1 | ... | ... | ... | ... |`; its last two cells are written anew, the others
stay. Of several results with one name the last one counts. Rows without results keep theirs.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def results(path):
    """{row: {name without the row: its figure as text}}"""
    rows = {}
    for line in path.read_text().splitlines():
        name, _, figure, unit, verdict = line.split("\t")
        row, _, test = name.partition(":")
        text = f"cannot be tried here: {figure}" if verdict == "SKIP" else f"{figure} {unit}"
        rows.setdefault(row, {})[test] = text + (" **FAIL**" if verdict == "FAIL" else "")
    return rows


def fill(line, rows):
    cells = line.split(" | ")
    row = re.match(r"\| ([A-Z]\d+)$", cells[0])
    if not row or row[1] not in rows or len(cells) != 5:
        return line
    tests = rows[row[1]]
    names = dict.fromkeys(t.partition(":")[0] for t in tests)
    several = {n for n in names if sum(t.partition(":")[0] == n for t in tests) > 1}
    said = []
    for test, figure in tests.items():
        name, _, what = test.partition(":")
        label = what.replace("_", " ") if name in several or len(names) == 1 else ""
        said.append(f"{label}: {figure}" if label else figure)
    return " | ".join([*cells[:3], "<br>".join(f"`{n}`" for n in names), "<br>".join(said) + " |"])


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/faults/results.tsv"
    page = ROOT / "docs/faults.md"
    rows = results(path)
    page.write_text("\n".join(fill(line, rows) for line in page.read_text().split("\n")))


if __name__ == "__main__":
    main()

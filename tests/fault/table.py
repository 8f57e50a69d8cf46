#!/usr/bin/python3
"""Fill in docs/faults.md: behind each row its tests and their figures in build/faults/results.tsv.

    tests/fault/table.py [RESULTS.tsv]

A row is a line `| P1 | ... | ... | ... | ... |`; its last two cells are written anew, the others
stay. Of several results with one name the last one counts. Rows without results keep theirs. The
parts of a test that is run in several, `name[0]`, `name[1]`..., stand as one: from least to most.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def together(parts):
    """The text of one figure, or of that of several parts: [(figure, unit, verdict)]"""
    figures = sorted({figure for figure, _, _ in parts}, key=lambda f: (len(f.split(".")[0]), f))
    unit, verdicts = parts[-1][1].strip(), {verdict for _, _, verdict in parts}
    if verdicts == {"SKIP"}:
        return f"cannot be tried here: {figures[0]}"
    span = figures[0] if len(figures) == 1 else f"{figures[0]} to {figures[-1]}"
    several = f", each of {len(parts)} runs" if len(parts) > 1 else ""
    return f"{span} {unit}{several}" + (" **FAIL**" if "FAIL" in verdicts else "")


def results(path):
    """{row: {name without the row: its figure as text}}"""
    last, rows = {}, {}
    for line in path.read_text().splitlines():
        name, _, *said = line.split("\t")
        last.pop(name, None)
        last[name] = said
    for name, said in last.items():
        row, _, test = name.partition(":")
        rows.setdefault(row, {}).setdefault(re.sub(r"\[\d\]", "", test), []).append(said)
    return {row: {test: together(parts) for test, parts in tests.items()}
            for row, tests in rows.items()}


def fill(line, rows):
    cells = line.split(" | ")
    row = re.match(r"\| ([A-Z]\d+)$", cells[0])
    if not row or row[1] not in rows or len(cells) != 5:
        return line
    tests = rows[row[1]]
    before = re.findall(r"`([^`]+)`", cells[3])  # several ran at once: each keeps its place
    names = sorted(dict.fromkeys(t.partition(":")[0] for t in tests),
                   key=lambda n: before.index(n) if n in before else len(before))
    several = {n for n in names if sum(t.partition(":")[0] == n for t in tests) > 1}
    said = []
    for test, figure in sorted(tests.items(), key=lambda t: names.index(t[0].partition(":")[0])):
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

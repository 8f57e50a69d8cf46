#!/usr/bin/python3
"""Write the figures of build/faults/results.tsv into docs/faults.md.

tests/fault/table.py [RESULTS.tsv]

In docs/faults.md, a section `### P1: ...` has a list with one item for each test. The script
rewrites the list of each section for which the file has results; other sections stay as they are.
If a name has several results, the script takes the last one. If a test has parts, `name[0]`,
`name[1]` and so on, the document gets one figure for all of them: the range from the smallest value
to the largest.
"""
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100


def together(parts):
    """Returns (figure, unit) for `parts`, a list of (figure, unit, verdict) with one element for
    each part of a test."""
    figures = sorted({figure for figure, _, _ in parts}, key=lambda f: (len(f.split(".")[0]), f))
    unit, verdicts = parts[-1][1].strip(), {verdict for _, _, verdict in parts}
    if verdicts == {"SKIP"}:
        return f"not run: {figures[0]}", ""
    span = figures[0] if len(figures) == 1 else f"{figures[0]} to {figures[-1]}"
    several = f", in each of {len(parts)} runs" if len(parts) > 1 else ""
    return span, unit + several + (" **FAIL**" if "FAIL" in verdicts else "")


def results(path):
    """Returns all results as {row: {test: {what: (figure, unit)}}}."""
    last, rows = {}, {}
    for line in path.read_text().splitlines():
        name, _, *said = line.split("\t")
        last.pop(name, None)
        last[name] = said
    for name, said in last.items():
        row, _, test = name.partition(":")
        test, _, what = re.sub(r"\[\d\]", "", test).partition(":")
        rows.setdefault(row, {}).setdefault(test, {}).setdefault(what, []).append(said)
    return {row: {test: {what: together(parts) for what, parts in figures.items()}
                  for test, figures in tests.items()} for row, tests in rows.items()}


def item(test, figures):
    """Returns the list item of a test. The item labels the figures only if two figures have the
    same unit."""
    units = [unit for _, unit in figures.values()]
    labelled = len(set(units)) < len(units)
    said = [(f"{what.replace('_', ' ')}: " if labelled and what else "")
            + f"{figure} {unit}".strip()
            for what, (figure, unit) in figures.items()]
    return textwrap.fill(f"* `{test}`: " + "; ".join(said), WIDTH, subsequent_indent="  ",
                         break_long_words=False, break_on_hyphens=False)


def fill(section, rows):
    row = re.match(r"### ([A-Z]\d+): ", section)
    if not row or row[1] not in rows:
        return section
    head, *items = re.split(r"^(?=\* `)", section, flags=re.M)
    tests = rows[row[1]]
    # Parallel tests write their results in any order, so keep the order of the document.
    before = re.findall(r"^\* `([^`]+)`", "".join(items), re.M)
    names = sorted(tests, key=lambda n: before.index(n) if n in before else len(before))
    end = re.search(r"\n(\n.*)?\Z", "".join(items), re.S)  # the text of the section after its list
    return head + "\n".join(item(n, tests[n]) for n in names) + (end[0] if end else "\n")


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/faults/results.tsv"
    page = ROOT / "docs/faults.md"
    rows = results(path)
    sections = re.split(r"^(?=#)", page.read_text(), flags=re.M)
    page.write_text("".join(fill(section, rows) for section in sections))


if __name__ == "__main__":
    main()

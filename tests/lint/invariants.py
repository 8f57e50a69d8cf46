#!/usr/bin/env python3
"""Check that every numbered invariant names the assertion or the test that proves it.

An item "(N) ..." under "Invariants" in a comment names its proof: PS_ASSERT, a test, a file of
tests or a mutant. Or a sentence after the items names the proof: "PS_ASSERT checks (1) and (2) in
every build". All names must exist.
"""
import re
import sys
from pathlib import Path

FOLDERS = ("common", "proto", "server", "worker", "kernels")
SENTENCE = re.compile(r"\(\d+\)|\ball\b|\bboth\b|\bthem\b")


def known_names():
    """Returns the names of all tests, and the names of all files in tests/ without their
    endings."""
    names = set()
    for path in Path("tests").rglob("*"):
        if path.suffix in (".c", ".h"):
            names |= set(re.findall(r"^TEST(?:_IN)?\(\s*(\w+)", path.read_text(), re.M))
        elif path.suffix == ".py":
            names |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
        names.add(path.stem)
    return names


def blocks(lines):
    """Yield (items, tail) for each list of invariants: the items by number with their texts, and
    the sentences that follow the list."""
    i = 0
    while i < len(lines):
        if not re.match(r" \* Invariants?\b.*:$", lines[i]):
            i += 1
            continue
        items, tail, number, i = {}, "", None, i + 1
        while i < len(lines) and lines[i] not in (" *", " */"):
            start = re.match(r" \* \((\d+)\) ", lines[i])
            number = start[1] if start else number if lines[i].startswith(" *     ") else None
            if number:
                items[number] = items.get(number, "") + lines[i][2:]
            else:
                tail += lines[i][2:]
            i += 1
        yield items, tail


def proofs(text):
    """Returns (files, tests and mutants): the words of a text that have the form of such names."""
    files = re.findall(r"\btests/[\w/]+\.\w+", text)
    tests = re.findall(r"\btest_\w+|\binvariant_\w+|\b[a-z0-9]+(?:_[a-z0-9]+){3,}\b", text)
    mutants = [name for some in re.findall(r"\bmutants? ([\w-]+(?: and [\w-]+)?)", text)
               for name in some.split(" and ")]
    return files, tests + mutants


def main():
    names, failed = known_names(), False
    for path in sorted(p for d in FOLDERS for p in Path(d).rglob("*") if p.suffix in (".c", ".h")):
        for items, tail in blocks(path.read_text().splitlines()):
            sentences = [s for s in re.split(r"(?<=\.) ", tail)
                         if ("PS_ASSERT" in s or "tests/" in s) and SENTENCE.search(s)]
            for number, text in items.items():
                files, tests = proofs(text)
                for name in [f for f in files if not Path(f).exists()] + \
                            [t for t in tests if t not in names and not is_function(path, t)]:
                    print(f"{path}: invariant ({number}) names {name}, which does not exist")
                    failed = True
                said = any(f"({number})" in s or not re.search(r"\(\d+\)", s) for s in sentences)
                if not files and not tests and "PS_ASSERT" not in text and not said:
                    print(f"{path}: invariant ({number}) names no assertion or test")
                    failed = True
    return failed


def is_function(path, name):
    """Returns True if the file at `path` has a function of this name: a name with the form of a
    test may also be a function."""
    return re.search(rf"\b{name}\(", path.read_text()) is not None


if __name__ == "__main__":
    sys.exit(main())

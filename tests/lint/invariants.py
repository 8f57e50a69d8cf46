#!/usr/bin/env python3
"""Check that every numbered invariant is an assertion, and that a test proves every promise.

An item "(N) ..." under "Invariants" in a comment names the functions that assert it in every build:
"asserted by go_live", or "asserted by on_message in core.c" if the function is not in the module of
the comment. Such a function must contain PS_ASSERT, and a comment with the number of the invariant,
so that a reader of either finds the other. An item under "Promises" is no property of the
state at one time, so no assertion can check it. It names its proof: a test, a file of tests or a
mutant. All tests, files and mutants that a list names must exist. A comment that speaks of an
invariant without such a list is a finding.
"""
import re
import sys
from pathlib import Path

SUFFIXES = (".c", ".h", ".cu", ".cuh")
FOLDERS = ("common", "proto", "server", "worker", "kernels", "tests")
LIST = re.compile(r" \* (?:.*\. )?(Invariants|Promises)\b[^:.]*:$")
FUNCTION = re.compile(r"^(?:\w[\w *]*[ *])?(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.M | re.S)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
NAME = r"(?!and\b|by\b)\w+(?: in [\w/]+\.c)?"
BY = re.compile(rf"\bby ({NAME}(?:, {NAME})*(?:,? and {NAME})?)")


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


def asserting_functions(path):
    """Returns {name: comments} of the functions of a file that contain PS_ASSERT."""
    return {name: " ".join(COMMENT.findall(body))
            for name, body in FUNCTION.findall(path.read_text()) if "PS_ASSERT(" in body}


def lists(lines):
    """Yield (title, items) for each list of invariants or promises: the items by number with their
    texts."""
    title, items, number = None, {}, None
    for line in [*lines, " */"]:
        head = LIST.match(line)
        start = re.match(r" \* \((\d+)\) ", line)
        if title and (head or line in (" *", " */")):
            yield title, items
            title = None
        if head:
            title, items, number = head[1], {}, None
        elif title:
            number = start[1] if start else number if line.startswith(" *     ") else None
            if number:
                items[number] = items.get(number, "") + line[2:].replace("    ", "")


def test_names(text):
    """Returns (files, tests and mutants): the words of a text that have the form of such names."""
    files = re.findall(r"\btests/[\w/]+\.\w+", text)
    tests = re.findall(r"\btest_\w+|\b(?:invariant|promise)_\w+|\b[a-z0-9]+(?:_[a-z0-9]+){3,}\b",
                       text)
    mutants = [name for some in re.findall(r"\bmutants? ([\w-]+(?: and [\w-]+)?)", text)
               for name in some.split(" and ")]
    return files, tests + mutants


def asserters(text):
    """Yield (function, file) for each function that a text names after "asserted by"; file is ""
    if the text names none."""
    for part in re.findall(r"\basserted by [^;)]*", text):
        for names in BY.findall(part):
            for name in re.findall(NAME, re.sub(r",? and |, ", ";", names)):
                function, _, file = name.partition(" in ")
                yield function, file


def missing_assertions(path, number, text, sources):
    """Yield what is wrong with the assertions that the text of an invariant names."""
    named = list(asserters(text))
    if not named:
        yield "names no function that asserts it"
    for function, file in named:
        places = [p for p in sources if str(p).endswith("/" + file)] if file else \
            [p for p in (path, path.with_suffix(".c")) if p in sources]
        comments = [sources[p][function] for p in places if function in sources[p]]
        if not comments:
            yield f"is not asserted by {function}"
        elif not any(re.search(rf"\b{number}\b", text) for text in comments):
            yield f"has no comment with its number in {function}"


def missing_tests(path, text, names, is_promise):
    """Yield what is wrong with the tests that an invariant or promise names."""
    files, tests = test_names(re.sub(r"\basserted by [^;)]*", "", text))
    for name in [f for f in files if not Path(f).exists()] + \
                [t for t in tests if t not in names and not is_function(path, t)]:
        yield f"names {name}, which does not exist"
    if is_promise and not files and not tests:
        yield "names no test"
    if is_promise and "asserted by" in text:
        yield "is asserted: it is an invariant"


def is_function(path, name):
    """Returns True if the file at `path` has a function of this name: a name with the form of a
    test may also be a function."""
    return re.search(rf"\b{name}\(", path.read_text()) is not None


def findings(path, names, sources):
    """Yield one finding for each error in the file at `path`."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(Invariants?|Promises?)\b[^:.]*:", line) and not LIST.match(line):
            yield f"{path}:{number}: an invariant without a number"
    for title, items in lists(lines):
        if not items:
            yield f"{path}: a list of {title.lower()} has no item (1)"
        is_promise = title == "Promises"
        for number, text in items.items():
            wrong = list(missing_tests(path, text, names, is_promise))
            if not is_promise:
                wrong += missing_assertions(path, number, text, sources)
            for what in wrong:
                yield f"{path}: {title.lower()[:-1]} ({number}) {what}"


def main():
    paths = sorted(p for d in FOLDERS for p in Path(d).rglob("*") if p.suffix in SUFFIXES)
    sources = {p: asserting_functions(p) for p in paths}
    names = known_names()
    found = [finding for path in paths for finding in findings(path, names, sources)]
    for finding in found:
        print(finding)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Check that each server/core/X.c includes X.h and the headers of exactly the modules that it uses.
A file uses a module if it uses one of its functions, macros, constants or structs (by name), or its
state in struct core or struct worker. A header that X.h includes counts as included by X.c.

struct core contains the state of the modules, so core_state.h includes their headers. A file that
includes core_state.h therefore compiles even if it uses a module whose header it does not include
itself. This lint finds such a use.

    tests/lint/modules.py [--show]

Prints one line per finding, and exits with 1 if there is any. --show prints the modules that each
file uses.
"""
import re
import sys
from pathlib import Path

CORE = Path("server/core")
# the interface of the core, which every file may use without a finding
BASE = {"config.h", "core.h"}
NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\\\n", re.S)
INCLUDE = re.compile(r'^#include "server/core/(\w+\.h)"', re.M)
TAG = re.compile(r"\b(struct|enum|union)\s+(\w+)")


def code_of(path):
    return NO_CODE.sub(" ", path.read_text())


def names_of(header):
    """Returns the functions, variables, macros, constants and types that a header declares."""
    names = set(re.findall(r"^#define (?!SERVER_CORE_)(\w+)", header, re.M))
    for body in re.findall(r"^enum(?: \w+)? \{(.*?)\};", header, re.M | re.S):
        names.update(re.findall(r"\b[A-Z]\w+", body))
    names.update(" ".join(tag) for tag in re.findall(r"^(struct|enum|union) (\w+) \{", header, re.M))
    names.update(re.findall(r"^(?!#)\w[\w ]*?[ *](\w+)\(", header, re.M))
    names.update(re.findall(r"^extern .*?(\w+)(?:\[\w*\])?;", header, re.M))
    return names


def words_of(code):
    """Returns the names in `code`. A word without an underscore counts only if it is called,
    because a variable or a member may have the same name as a function."""
    tags = {" ".join(tag) for tag in TAG.findall(code)}
    code = TAG.sub(" ", code)
    return tags | set(re.findall(r"\b\w+_\w+|\b[A-Z]\w+|(?<![.>])\b\w+(?=\()", code))


def members_of(header, tag):
    """The members of a struct that are or point to structs: name -> type."""
    body = re.search(rf"^struct {tag} \{{(.*?)^\}};", header, re.M | re.S)
    return {name: f"struct {kind}" for kind, name in
            re.findall(r"\bstruct (\w+) \*?(\w+);", body[1] if body else "")}


def main():
    headers = {path.name: code_of(path) for path in sorted(CORE.glob("*.h"))}
    names = {header: names_of(code) for header, code in headers.items()}
    defined = {name: header for header in names for name in names[header]}
    state = {"core": members_of(headers.get("core_state.h", ""), "core"),
             "worker": members_of(headers.get("workers.h", ""), "worker")}
    bad = 0
    for path in sorted(CORE.glob("*.c")):
        source, code, own = path.read_text(), code_of(path), path.with_suffix(".h").name
        if "options.def" in source:
            code += code_of(CORE / "options.def")
        words = words_of(code)
        uses = {header: names[header] & words for header in headers if names[header] & words}
        for pointer, member in re.findall(r"\b(\w+)(?:\[\w+\])?(?:->|\.)(\w+)\b", code):
            owner = "core" if pointer in ("c", "core") else "worker"
            header = defined.get(state[owner].get(member))
            if header:
                uses.setdefault(header, set()).add(f"{owner}.{member}")
        if "struct core" in words and re.search(r"\b(c|core)->", code):
            uses.setdefault("core_state.h", set()).add("struct core")
        if "--show" in sys.argv[1:]:
            for header, what in sorted(uses.items()):
                print(f"{path} {header}: {', '.join(sorted(what))}")
            continue
        included = set(INCLUDE.findall(source))
        given = included | BASE
        if own in headers:
            given.update(INCLUDE.findall((CORE / own).read_text()))
            if own not in included:
                print(f"{path}: does not include {own}")
                bad = 1
        for header in sorted(set(uses) - given - {own}):
            print(f"{path}: uses {', '.join(sorted(uses[header]))} without {header}")
            bad = 1
        for header in sorted(included - set(uses) - {own}):
            print(f"{path}: includes {header}, but uses nothing of it")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())

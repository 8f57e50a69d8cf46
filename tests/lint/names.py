#!/usr/bin/env python3
"""Check that comments mention only names that exist: each word with an underscore in a C or CUDA
comment must be a name somewhere in the code. So no comment keeps the old name of a function after a
change of its name.

The lint prints FILE:LINE of each word that is no such name, and exits with 1 if it finds any.
"""
import re
import sys
from pathlib import Path

# names that occur only in other programs, libraries and formats
FOREIGN = {"alloc_assert", "file_version", "sd_notify", "simple_value"}
PROGRAMS = (".c", ".h", ".cu", ".cuh", ".def", ".proto")
TEXT = (".py", ".sh", ".mk", ".awk", ".yaml", ".yml", ".json", ".js", ".html", "")
PIECE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
NAME = re.compile(r"\b[a-z][a-z0-9]+(?:_[a-z0-9]+)+\b")  # does not match x_i, which is a formula
DIRECTORIES = ("common", "deploy", "kernels", "proto", "server", "tests", "worker")


def sources():
    for directory in DIRECTORIES:
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file() and path.suffix in PROGRAMS + TEXT:
                yield path
    yield Path("Makefile")


def main():
    known, comments = set(FOREIGN), []
    for path in sources():
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        known.update(re.findall(r"\w+", str(path)))
        if path.suffix not in PROGRAMS:
            known.update(re.findall(r"\w+", text))
            continue
        for found in PIECE.finditer(text):
            if found[0].startswith("/"):
                comments.append((path, text.count("\n", 0, found.start()) + 1, found[0]))
        known.update(re.findall(r"\w+", PIECE.sub(
            lambda found: " " if found[0].startswith("/") else found[0], text)))
    bad = 0
    for path, line, comment in comments:
        for name in NAME.finditer(comment):
            if name[0] not in known:
                print(f"{path}:{line + comment.count(chr(10), 0, name.start())}: "
                      f"there is no {name[0]}")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())

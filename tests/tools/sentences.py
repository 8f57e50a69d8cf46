#!/usr/bin/python3
"""Draws sentences at random, so that a reader can decide which of them are clear: sentences.py SEED
[N].

A third of the N sentences (30 by default) comes from comments, a third from the help texts of
options, a third from documents. If the arguments and the files are equal, the script draws the same
sentences."""
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from pathlib import Path

HASH_FILES = (".sh", ".mk", ".yml", ".yaml", ".service", ".conf", "Makefile", "Dockerfile")
NOT_OURS = re.compile(r"tests/(fixtures|fuzz/corpus|golden)/|CHANGELOG|dygraphs|LICENSE|debian/copy")
ABBREVIATIONS = re.compile(r"(e\.g|i\.e|etc|et al|vs|cf|Fig|Eq|Sec)\.$")


def files():
    listed = subprocess.run(["git", "ls-files"], check=True, text=True, capture_output=True)
    return [name for name in listed.stdout.split("\n") if name and not NOT_OURS.search(name)]


def blocks_of_c(lines):
    """Yields (line number, text) for each comment, without stars and slashes."""
    text, start, in_slashes = [], 0, False
    for number, line in enumerate(lines + [""], 1):
        slashes = re.match(r"\s*//(.*)", line)
        if in_slashes and not slashes:
            yield start, "\n".join(text)
            text, in_slashes = [], False
        if slashes and (in_slashes or not text):
            start = start if text else number
            text.append(slashes[1])
            in_slashes = True
            continue
        if not text:
            found = re.search(r"(?:^|[\s;{}),])(/\*|//)(.*)", line)
            if not found:
                continue
            if found[1] == "//":
                yield number, found[2]
                continue
            start, line = number, found[2]
        end = line.find("*/")
        text.append(re.sub(r"^\s*\*?", "", line if end < 0 else line[:end]))
        if end >= 0:
            yield start, "\n".join(text)
            text = []


def blocks_of_hash(lines):
    text, start = [], 0
    for number, line in enumerate(lines + [""], 1):
        found = re.match(r"\s*#(?![!:])(.*)", line)
        if found:
            start = start if text else number
            text.append(found[1])
        elif text:
            yield start, "\n".join(text)
            text = []


def blocks_of_python(lines):
    """Yields the comments, and the docstrings of modules, classes and functions."""
    text = "\n".join(lines)
    alone = [""] * len(lines)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip() == token.string:
            alone[token.start[0] - 1] = token.string
        elif token.type == tokenize.COMMENT:
            yield token.start[0], token.string[1:]
    yield from blocks_of_hash(alone)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring


def blocks_of_markdown(lines):
    """Yields each paragraph and each item of a list; no code, tables and headings."""
    text, start, fenced = [], 0, False
    for number, line in enumerate(lines + [""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        ends = fenced or not stripped or re.match(r"```|[|#<!]|- |\* |\d{1,2}\. ", stripped)
        if ends and text:
            yield start, "\n".join(text)
            text = []
        if fenced or not stripped or re.match(r"```|[|#<!]", stripped):
            continue
        start = start if text else number
        text.append(re.sub(r"^(- |\* |\d{1,2}\. )", "", stripped))


def sentences_of(block):
    """Yields (line number, text) for each sentence of a comment or paragraph, except in tables."""
    number, text = block
    for paragraph in re.finditer(r"(?:.*\S.*\n?)+", text):
        pending, place = "", 0
        for found in re.finditer(r"\S.*?(?:(?<=\S)[.!?](?=\s|$)|\Z)", paragraph[0], re.S):
            place = place if pending else paragraph.start() + found.start()
            pending = " ".join([pending, *found[0].strip(" -=").split()]).strip()
            if ABBREVIATIONS.search(pending) and found.end() < len(paragraph[0].rstrip()):
                continue
            is_table = re.search(r"\S {2,}\S", paragraph[0])
            if len(pending.split()) >= 4 and re.search("[a-z]{3}", pending) and not is_table:
                yield number + text[:place].count("\n"), pending
            pending = ""


def help_texts(path):
    """Yields (path, line number, text) for each option and command of docs/options.md."""
    text, start = "", 0
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        if re.match(r"  [-a-z]", line):
            if text:
                yield path, start, text
            text, start = " ".join(line.split()), number
        elif re.match(r" {15,}\S", line) and text:
            text += " " + line.strip()
        elif text:
            yield path, start, text
            text = ""


def all_sentences():
    comments, documents = [], []
    for name in files():
        path = Path(name)
        if not path.is_file() or name == "docs/options.md":
            continue
        kind, where = None, comments
        if path.suffix in (".c", ".h", ".cu", ".cuh", ".def", ".proto", ".js"):
            kind = blocks_of_c
        elif path.suffix == ".py":
            kind = blocks_of_python
        elif path.suffix in HASH_FILES or path.name in HASH_FILES:
            kind = blocks_of_hash
        elif path.suffix == ".md":
            kind, where = blocks_of_markdown, documents
        if kind:
            lines = path.read_text(encoding="utf-8").split("\n")
            where += [(name, number, sentence) for block in kind(lines)
                      for number, sentence in sentences_of(block)]
    return {"comment": comments, "help": list(help_texts("docs/options.md")),
            "document": documents}


def code_beside(name, number):
    """Returns the code in front of a comment on the same line."""
    line = Path(name).read_text(encoding="utf-8").split("\n")[number - 1]
    found = re.match(r"\s*([^\s/#*].*?)\s*(/\*|//|  # )", line)
    return found[1] if found else None


def main(seed, count):
    chance = random.Random(seed)
    kinds = all_sentences()
    for index, (kind, found) in enumerate(kinds.items()):
        share = count // 3 + (index < count % 3)
        for name, number, sentence in sorted(chance.sample(found, min(share, len(found)))):
            print(f"{kind}  {name}:{number}\n    {sentence}")
            if kind == "comment" and (code := code_beside(name, number)):
                print(f"    beside: {code}")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3 or not all(text.isdigit() for text in sys.argv[1:]):
        sys.exit("usage: sentences.py SEED [N]; both are numbers")
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 30)

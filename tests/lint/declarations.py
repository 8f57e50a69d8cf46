#!/usr/bin/env python3
"""Check that a blank line separates the declarations at the top of a block from its statements.

    tests/lint/declarations.py [--fix]

The lint prints FILE:LINE of each statement that follows these declarations directly, and exits with
1 if it finds any. With --fix it inserts the blank lines instead. The lint requires no blank line
after a declaration that follows a statement, and none in a block that has only one declaration and
one statement.
"""
import re
import subprocess
import sys
from pathlib import Path

STATEMENT = r"(?:return|goto|else|case|if|for|while|do|switch|break|continue|asm|default)\b"
QUALIFIER = (r"(?:static|const|struct|enum|union|unsigned|signed|volatile|extern|constexpr|"
             r"__shared__|PS_UNINITIALIZED|_Alignas\([^)]*\)|alignas\([^)]*\))")
TYPE = r"[A-Za-z_][\w:]*(?:<[^;=()]*>)?(?:\s+const)?"
DECLARATION = re.compile(
    rf"\t+(?!{STATEMENT})(?:{QUALIFIER}\s+)*{TYPE}(?:\s+\**|\s*[*&]+\s*(?:const\s+)?|\s+\(\*)"
    r"[A-Za-z_]\w*(?:\)\([^;]*\))?\s*(?:\[[^;=]*\]\s*)*(?:=[^=]|;|,|\{|$|\[)")
LOCAL_TYPE = re.compile(r"\t+(?:static )?(?:const )?(?:struct|union|enum)(?: \w+)? \{$")
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|/\*.*?\*/|//.*')
COMMENT = ("/*", "*", "//")
# Matches lines that end with an opening brace but do not begin a block of statements.
NO_BLOCK = re.compile(
    r".*(?:=|\breturn|,|\() ?\{$|\s*(?:static )?(?:const )?(?:struct|union|enum|typedef|extern|"
    r"namespace)[\w ]*\{$|\s*(?:template.*struct|\*|//|/\*|#)")


def end_of_statement(lines, i):
    """Returns the index of the line on which the statement of line i ends."""
    depth = 0
    while i < len(lines):
        code = LITERAL.sub("", lines[i])
        depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
        if (depth <= 0 and code.rstrip().endswith(";")) or code.startswith("#"):
            break
        i += 1
    return i


def findings(lines):
    """Yields the index of each statement that directly follows the declarations at the top of a
    block, without a blank line."""
    for i, line in enumerate(lines):
        if not line.endswith("{") or NO_BLOCK.match(line):
            continue
        start = at = i + 1
        while True:
            code = at
            while code < len(lines) and lines[code].lstrip().startswith(COMMENT):
                code += 1
            if code >= len(lines) or not (DECLARATION.match(lines[code]) or
                                          LOCAL_TYPE.match(lines[code])):
                break
            at = end_of_statement(lines, code) + 1
        if at > start and at < len(lines) and lines[at].strip() \
                and not lines[at].lstrip().startswith("}") and not lines[at].startswith("#"):
            yield at


def main():
    folders = ["common", "proto", "kernels", "server", "worker", "tests"]
    names = subprocess.run(["find", *folders, "-name", "*.[ch]", "-o", "-name", "*.cu", "-o",
                            "-name", "*.cuh"], capture_output=True, text=True).stdout.split()
    found = False
    for name in sorted(names):
        lines = Path(name).read_text(encoding="utf-8").split("\n")
        at = list(findings(lines))
        if "--fix" in sys.argv[1:]:
            for i in reversed(at):
                lines.insert(i, "")
            if at:
                Path(name).write_text("\n".join(lines), encoding="utf-8")
            continue
        for i in at:
            print(f"{name}:{i + 1}: a blank line after declarations: {lines[i].strip()[:60]}")
            found = True
    return found


if __name__ == "__main__":
    sys.exit(main())

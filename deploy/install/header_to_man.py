#!/usr/bin/env python3
"""Prints the manual page cnnps(3), made from the comments and declarations of a header.

    header_to_man.py HEADER VERSION >cnnps.3

The first comment of the header is the text of DESCRIPTION. A comment of the form
`/* ---- title --- */` begins a section. Each further comment at the beginning of a line describes
the declaration after it.
"""
import os
import re
import sys
import time


def escape(line):
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + line if line.startswith((".", "'")) else line


def prose(comment):
    """Returns the paragraphs of a comment as troff. Indented lines keep their line breaks."""
    out = []
    for paragraph in re.split(r"\n\s*\n", comment.strip("\n")):
        lines = paragraph.split("\n")
        if lines[0].startswith("    "):
            out += [".PP", ".nf", *map(escape, lines), ".fi"]
        else:
            out += [".PP", escape(" ".join(line.strip() for line in lines))]
    return out


def text_of(comment):
    """Returns the text between /* and */, without the asterisks at the beginning of lines."""
    body = comment.strip()[2:-2]
    return "\n".join(re.sub(r"^\s*\* ?", "", line) for line in body.split("\n"))


def blocks(source):
    """Yields the pairs (comment, declaration) of the header, in order."""
    source = re.sub(r"^#(?:ifndef|endif|include|ifdef).*\n|^#define CNNPS_H\n", "", source,
                    flags=re.M)
    source = re.sub(r'^extern "C" \{\n|^\}\n', "", source, flags=re.M)
    comment, declaration = "", []
    for part in re.split(r"(^/\*.*?\*/\n)", source, flags=re.M | re.S):
        if part.startswith("/*"):
            if comment or "".join(declaration).strip():
                yield comment, "".join(declaration).strip("\n")
            comment, declaration = text_of(part), []
        else:
            declaration.append(part)
    yield comment, "".join(declaration).strip("\n")


def main():
    header, version = sys.argv[1:]
    with open(header, encoding="utf-8") as file:
        pairs = list(blocks(file.read()))
    now = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    out = [f'.TH CNNPS 3 {time.strftime("%Y-%m-%d", now)} "libcnnps {version}" "Library functions"',
           ".SH NAME", "cnnps \\- be a worker of a cnn\\-ps parameter server", ".SH SYNOPSIS",
           ".B #include <cnnps.h>", ".PP",
           "Compile and link with $(pkg\\-config \\-\\-cflags \\-\\-libs cnnps).",
           ".SH DESCRIPTION"]
    first, declaration = pairs[0]
    out += prose(first.split("\n", 2)[2] if first.startswith("\n") else first)
    for comment, declaration in pairs[1:]:
        title = re.fullmatch(r"\s*---- (.*?) -*\s*", comment)
        if title:
            out.append(f".SH {title[1].upper()}")
        elif comment:
            out += prose(comment)
        if declaration.strip():
            lines = declaration.replace("\t", "    ").strip("\n").split("\n")
            out += [".PP", ".RS 4", ".nf", *map(escape, lines), ".fi", ".RE"]
    out += [".SH SEE ALSO", ".BR cnn\\-ps (1),", ".BR cnn\\-worker (1),", ".BR cnn\\-ctl (1)"]
    print("\n".join(out))


if __name__ == "__main__":
    main()

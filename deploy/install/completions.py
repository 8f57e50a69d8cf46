#!/usr/bin/env python3
"""Writes completions for bash and zsh, made from the programs' --help.

    completions.py BUILD-DIRECTORY OUTPUT-DIRECTORY

Writes cnn-ps.bash for bash and _cnn-ps for zsh, each for all three programs. For an option that
takes a value from a list, the completions are the values of the list; for FILE and DIR, they are
file names.
"""
import re
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("cnn-ps", "cnn-worker", "cnn-ctl")
ROW = re.compile(r"^  --(\[no-\])?([a-z][a-z0-9-]*)(?: (\S+))?(?:  +(.*))?$")


def options(text):
    """Yields (name, argument or None, help) for each option in a --help text."""
    found = []
    for line in text.split("\n"):
        row = ROW.match(line)
        if row:
            negation, name, argument, words = row.groups()
            found.append([name, argument, words or ""])
            if negation:
                found.append([f"no-{name}", None, f"the opposite of --{name}"])
        elif found and re.match(r"^ {20,}\S", line):
            place = found[-2] if found[-1][0].startswith("no-") else found[-1]
            place[2] = f"{place[2]} {line.strip()}".strip()
    return [tuple(row) for row in found]


def values(argument, words):
    """Returns the values of an option if its argument has the form a|b|c, or if its help lists them
    as (a|b[:F]|c; ...). Returns an empty list for any other option. The value of b[:F] is b."""
    if argument and re.fullmatch(r"[a-z]+(\|[a-z]+)+", argument):
        return argument.split("|")
    found = re.search(r"\(([\w.-]+(?:\[:F\])?(?:\|[\w.-]+(?:\[:F\])?)+)", words)
    return found[1].replace("[:F]", "").split("|") if found else []


def commands(text):
    part = re.search(r"^Commands:\n(.*?)\n\n", text, re.M | re.S)
    return re.findall(r"^  ([a-z-]+)", part[1], re.M) if part else []


def bash(helps):
    out = ["# bash completion for cnn-ps, cnn-worker and cnn-ctl: made from their --help",
           "_cnn_ps()", "{",
           '\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}',
           '\t# bash splits --option=value at the "="', '\t[ "$cur" != = ] || cur=',
           '\t[ "$prev" != = ] || prev=${COMP_WORDS[COMP_CWORD-2]}',
           "\tlocal words='' list=''", "\tcase ${1##*/}:$prev in"]
    for program, text in helps.items():
        for name, argument, words in options(text):
            if values(argument, words):
                out.append(f"\t{program}:--{name}) list='{' '.join(values(argument, words))}' ;;")
            elif argument and argument.strip("[]") not in ("FILE", "DIR"):
                out.append(f"\t{program}:--{name}) return ;;")
            elif argument:
                out.append(f"\t{program}:--{name}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;")
    out += ["\tesac", '\tif [ -n "$list" ]; then',
            '\t\tCOMPREPLY=($(compgen -W "$list" -- "$cur"))', "\t\treturn", "\tfi",
            "\tcase ${1##*/} in"]
    for program, text in helps.items():
        names = " ".join(f"--{name}" for name, _, _ in options(text))
        out.append(f"\t{program}) words='{' '.join([names, *commands(text)])}' ;;")
    out += ["\tesac", '\tCOMPREPLY=($(compgen -W "$words" -- "$cur"))', "}",
            f"complete -o filenames -F _cnn_ps {' '.join(PROGRAMS)}", ""]
    return "\n".join(out)


def zsh_quote(text):
    return re.sub(r"([\[\]:\\'])", lambda m: "'\\''" if m[1] == "'" else "\\" + m[1], text)


def zsh(helps):
    out = [f"#compdef {' '.join(PROGRAMS)}",
           "# zsh completion for cnn-ps, cnn-worker and cnn-ctl: made from their --help",
           "case $service in"]
    for program, text in helps.items():
        out.append(f"{program})\n\t_arguments \\")
        for name, argument, words in options(text):
            row = f"--{name}{'=' if argument else ''}[{zsh_quote(words)}]"
            if values(argument, words):
                row += f":{zsh_quote(name)}:({' '.join(values(argument, words))})"
            elif argument:
                kind = argument.strip("[]")
                row += f":{zsh_quote(kind.lower())}:" + {"FILE": "_files", "DIR": "_files -/"}.get(kind, " ")
            out.append(f"\t\t'{row}' \\")
        names = commands(text)
        out.append(f"\t\t'1:command:({' '.join(names)})' '*:file:_files'" if names
                   else "\t\t&& return")
        out.append("\t;;")
    out += ["esac", ""]
    return "\n".join(out)


def main():
    build, target = Path(sys.argv[1]), Path(sys.argv[2])
    helps = {name: subprocess.run([build / name, "--help"], check=True, capture_output=True,
                                  text=True).stdout for name in PROGRAMS}
    target.mkdir(parents=True, exist_ok=True)
    (target / "cnn-ps.bash").write_text(bash(helps), encoding="utf-8")
    (target / "_cnn-ps").write_text(zsh(helps), encoding="utf-8")


if __name__ == "__main__":
    main()

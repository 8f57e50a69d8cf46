"""Read the fenced blocks of all documents of the repository (DOCUMENTS), and the mark of each
block.

tests/e2e/test_documents.py runs each block. An HTML comment on the line before a block, the mark,
changes how the block is tested:

<!-- slow: REASON -->      it runs only with CNN_SLOW=1, as in `make documents`
<!-- stopped: REASON -->   the test ends its programs, which would run on, with SIGTERM
<!-- gpu: REASON -->       tests/gpu/test_gpu_documents.py runs it instead, on a GPU
<!-- ci: REASON -->        .ci/run has its commands, and a test compares the two

A block without a language contains shell commands. A block called python or c contains a program. A
block called text contains output or a drawing, and a block called yaml contains a part of a
configuration. These two kinds contain no command.
"""
import re
from dataclasses import dataclass, field

from support.build import ROOT

RUNS = ("", "python", "c")
NO_COMMAND = ("text", "yaml")
FOLDERS = ("common", "deploy", "docs", "kernels", "proto", "server", "tests", "worker")
DOCUMENTS = [*sorted(ROOT.glob("*.md")),
             *(path for folder in FOLDERS for path in sorted((ROOT / folder).glob("**/*.md")))]


class Wrong(Exception):
    """Raised if a document breaks the rules of this module."""


@dataclass
class Block:
    path: object
    line: int
    language: str
    lines: list = field(default_factory=list)
    mark: str = ""  # the mark: "slow", "stopped", "gpu" or "ci"; "": the block has no mark
    reason: str = ""

    @property
    def name(self):
        return f"{self.path.name}:{self.line}"

    def text(self):
        return "\n".join(self.lines) + "\n"

    def commands(self):
        """Returns the shell commands of the block, without comments. A command on several lines is
        one element."""
        joined = self.text().replace("\\\n", " ")
        return [c for c in (re.sub(r"(^|\s)#.*$", "", line).strip()
                            for line in joined.splitlines()) if c]


def marked(block, before):
    """Set the mark of a block from `before`, the line before the block."""
    comment = re.fullmatch(r"<!--\s*(.*?)\s*-->", before.strip())
    if comment:
        found = re.fullmatch(r"(slow|stopped|gpu|ci):\s*(.*)", comment[1])
        if found:
            block.mark, block.reason = found[1], found[2]
            if len(block.reason.split()) < 3:
                raise Wrong(f"{block.name}: the mark '{block.mark}' gives no reason")
    if block.language not in RUNS + NO_COMMAND:
        raise Wrong(f"{block.name}: a block of '{block.language}' cannot be run; a block without "
                    "commands is called text")
    return block


def blocks(path, text=None):
    """Returns all blocks of a document, in order."""
    found, inside, before = [], None, ""
    for number, line in enumerate((text or path.read_text()).splitlines(), 1):
        fence = re.match(r"\s*(```+|~~~+)\s*(\S*)", line)
        if inside and fence and not fence[2]:
            inside = None
        elif inside:
            inside.lines.append(line)
        elif fence:
            inside = marked(Block(path, number, fence[2]), before)
            found.append(inside)
        before = line if line.strip() else before
    if inside:
        raise Wrong(f"{inside.name}: the block has no end")
    return found

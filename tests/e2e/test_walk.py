"""The section "The walk of a push" of docs/architecture.md names the functions that the server
calls for a push. tests/tools/walk_trace.py must find the calls that this section leaves out. The
short form of the tests uses calls that are written down here, and the long form also traces a real
server (make walk-trace)."""
import subprocess
import sys

import pytest

from support.build import FULL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "tools"))
import walk_trace  # noqa: E402

PAGE = """
## How to read the walks

* functions that return a field of a struct: `b_count`.

## The walk of a push

1. `server/a.c`: `on_a`. 2. `server/b.c`: `b_take`.

| `b_old` (here not) | `server/b.c` | ... |

A trace enters 4 functions in 2 files. In order, 2 functions are in another file than the one before.

## The end
"""
PUSH = [("on_a", "server/a.c", None, None), ("of_a", "server/a.c", "on_a", "server/a.c"),
        ("b_take", "server/b.c", "of_a", "server/a.c"),
        ("b_count", "server/b.c", "on_a", "server/a.c"),
        ("on_a", "server/a.c", "b_take", "server/b.c")]


@pytest.mark.parametrize("page, calls, finding", [
    (PAGE, PUSH, None),
    (PAGE, [*PUSH, ("c", "server/c.c", "b_take", "server/b.c")], "enters server/c.c"),
    (PAGE, [*PUSH, ("b_new", "server/b.c", "on_a", "server/a.c")], "calls b_new"),
    (PAGE.replace("`b_old` (here not)", "`b_old`"), PUSH, "a row of b_old"),
    (PAGE.replace("2 functions", "3 functions"), PUSH, "with 2 changes"),
])
def test_the_tool_finds_what_a_walk_leaves_out(page, calls, finding):
    found = list(walk_trace.findings(page, calls))
    assert bool(found) == bool(finding) and (not finding or any(finding in f for f in found)), found


@pytest.mark.skipif(not FULL, reason="builds a server; CNN_SLOW=1")
def test_the_walk_of_a_push_names_what_a_push_calls():
    made = subprocess.run(["make", "-s", "walk-trace"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr

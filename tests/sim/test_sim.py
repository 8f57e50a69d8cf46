"""Run the simulator: it must find no violation in many whole runs, and a violation in each
mutant."""
import os
import re
import shlex
import subprocess

import pytest

from support.build import FLAVOUR, ROOT, command

# numbers of seeds; fewer under a sanitizer, because each run is slower
SEEDS = 20000 if FLAVOUR == "release" else 400
HOSTILE_SEEDS = 2000 if FLAVOUR == "release" else 100
OLDER_SEEDS = 1000 if FLAVOUR == "release" else 50
LIMIT = 240


def sim(program, *arguments):
    return subprocess.Popen(command(program, *arguments), cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("options, seeds", [
    ((), SEEDS), (("--hostile",), HOSTILE_SEEDS), (("--older",), OLDER_SEEDS)],
    ids=["honest", "hostile", "older"])
def test_no_seed_violates_anything(options, seeds):
    """The test divides the seeds among all processors. With --hostile, some workers are hostile.
    With --older, some workers have protocol version 6."""
    jobs = os.cpu_count() or 1
    edge = [1 + seeds * j // jobs for j in range(jobs + 1)]
    runs = [sim("tests/sim/sim", "--seeds", f"{a}..{b - 1}", *options)
            for a, b in zip(edge, edge[1:])]
    try:
        for run in runs:
            text, _ = run.communicate(timeout=LIMIT)
            print(text)
            assert run.returncode == 0, text[-4000:]
    finally:
        for run in runs:
            run.kill()


def test_replays_of_lost_work_exclude_no_honest_worker():
    """In this seed the server dies three times, and an honest worker replays pushes whose work the
    server no longer knows. They are no strikes."""
    run = sim("tests/sim/sim", "--seed", "368120", "--mode", "sandblaster", "--hostile")
    text, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, text


def digest_of(*arguments):
    text, _ = sim("tests/sim/sim", *arguments).communicate(timeout=LIMIT)
    return re.search("digest ([0-9a-f]{16})", text).group(1)


def test_the_digest_tells_whether_seeds_run_as_before():
    """The digest of many seeds does not depend on the number of processes, and other seeds have
    another digest."""
    digest = digest_of("--seeds", "1..140")
    assert digest == digest_of("--seeds", "1..140", "--jobs", "3")
    assert digest != digest_of("--seeds", "2..141")
    assert digest_of("--seed", "5") == digest_of("--seed", "5", "--trace")


def options_of(bug):
    """Returns the options of the simulator with which the bug is found: the patch of a bug that
    only hostile workers use begins with a line that names them."""
    with open(ROOT / f"tests/sim/mutants/{bug}.patch") as patch:
        found = re.fullmatch(r"# found with (--hostile)\n", patch.readline())
    return found.groups() if found else ()


BUGS = sorted(patch.stem for patch in (ROOT / "tests/sim/mutants").glob("*.patch"))


@pytest.mark.parametrize("bug", BUGS)
def test_mutant_is_found(bug):
    """build/FLAVOUR/mutants/BUG is the simulator with the bug of tests/sim/mutants/BUG.patch."""
    run = sim(f"mutants/{bug}", "--seeds", "1..30000", *options_of(bug))
    text, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 1, text[-4000:]
    replay = re.findall("^replay: (.*) --trace$", text, re.M)
    assert "shrunk: " in text and len(replay) == 2, text
    for command_line in replay:
        again = subprocess.run(shlex.split(command_line), cwd=ROOT, stdout=subprocess.DEVNULL,
                               timeout=LIMIT)
        assert again.returncode == 1, f"does not fail again: {command_line}"

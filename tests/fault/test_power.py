"""Fault P4 of docs/faults.md: the power fails. The test runs the server's start on every directory
that a power cut may leave (crash_states.py)."""
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import crash_states
from support import safetensors
from support.build import BUILD, FULL, ROOT, command
from support.programs import SIGTERM

sys.path.append(str(ROOT / "tests/wire"))
from client import Worker  # noqa: E402  a client in Python, written from WIRE.md

# SIZE is the number of weights. A push has 2400 bytes (five sectors), or in the short form 160
# (one).
SIZE = 600 if FULL else 40
OPTIONS = ("--model", f"vector:{SIZE}", "--optimizer", "sgd", "--lr", 1, "--max-workers", 1,
           "--checkpoint-ms", 3600000)
LEVELS = ("replay", "always")
# CYCLES is the number of checkpoints that the server makes after each start. The server keeps fewer
# checkpoints than this, so it reuses the files of old write-ahead logs.
CYCLES = 6


class Recorder:
    """Runs a server and a client, and logs all changes of the server's directory. The client notes
    in this log what it has sent and received."""

    def __init__(self, programs, level, place):
        self.programs, self.place, self.client = programs, place, None
        self.log = programs.directory / f"{place.name}.log"
        self.env = {"LD_PRELOAD": str(BUILD / "tests/fault/disk.so"), "DISK_ROOT": str(place),
                    "DISK_LOG": str(self.log)}
        self.options = (*OPTIONS, "--durability", level)
        place.mkdir(exist_ok=True)

    def note(self, **noted):
        """Append notes of the client to the log, after the operations that the log already has."""
        lines = "".join(f"note\t-1\t{name}\t-\t{value}\t0\n" for name, value in noted.items())
        with self.log.open("ab", buffering=0) as log:
            log.write(lines.encode())

    def start(self):
        self.server = self.programs.server(*self.options, directory=self.place.name, env=self.env)
        return self.server.endpoint

    def note_client(self):
        c = self.client
        self.note(term=c.stamp.term, durable=c.durable)

    def push(self):
        gradient = np.zeros(SIZE, np.float32)
        gradient[self.client.seq] = 1
        self.note(sent=self.client.seq + 1)
        ack = self.client.push(gradient, self.client.pull()[1])
        self.note_client()
        return ack

    def term(self):
        """Run one term of the server: a start, pushes and checkpoints. From the second term on, the
        client resumes its session."""
        endpoint = self.start()
        if self.client:
            self.client.endpoint = endpoint
            self.client.reconnect()
        else:
            self.client = Worker(endpoint, name="peer")
        self.note_client()
        for _ in range(CYCLES):
            acks = [self.push() for _ in range(2)]
            if "always" in self.options:
                assert all(a.durable_seq >= a.seq for a in acks)
            self.programs.ctl("--server", endpoint, "checkpoint")
        self.push()

    def close(self):
        if self.client:
            self.client.close()
        self.server.kill()


def recorded(programs, level):
    """Returns the log of two terms of a server. The first term ends with kill -9, the second with a
    drain."""
    recorder = Recorder(programs, level, programs.directory / "ckpt")
    for _ in range(2):
        recorder.term()
        last = recorder.server
        if recorder.client.seq < 20:
            recorder.server.kill()
    last.signal(SIGTERM)
    assert last.wait(10) == 0, last.tail()
    assert recorder.client.durable > 20, "something is promised"
    recorder.close()
    return crash_states.read_log(recorder.log)


class StartChecker:
    """Runs the server's start on many directories. If several directories have equal contents, the
    class starts a server only on one of them."""

    def __init__(self):
        # content of a directory -> [status, resumed, term, last_seq, applied], the output of
        # tests/tools/start.c
        self.found = {}
        self.illegal = []
        # The command needs no --durability: whatever the level of this start is, the server reads
        # the write-ahead log that it finds.
        self.argv = command("tests/tools/start", *OPTIONS)

    def start_all(self, states):
        """Add the results for all states to `found`. One process makes up to 500 starts, on a RAM
        disk if this machine has one."""
        new = [s for s in states if s not in self.found]
        memory = Path("/dev/shm")
        root = memory if os.access(memory, os.W_OK) else None
        for at in range(0, len(new), 500):
            with tempfile.TemporaryDirectory(dir=root) as directory:
                self.start_some(Path(directory), new[at:at + 500])

    def start_some(self, directory, states):
        places = [directory / str(k) for k in range(len(states))]
        for place, state in zip(places, states):
            place.mkdir()
            for name, data in state:
                (place / name).write_bytes(data)
        done = subprocess.run(self.argv, input="\n".join(map(str, places)) + "\n", text=True,
                              capture_output=True, timeout=300)
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == len(states), done.stderr[-2000:]
        for state, line in zip(states, lines):
            self.found[state] = [int(word) for word in line.split()[:5]]

    def check(self, state, noted):
        """Check a start after a power cut. The start must restore every push that the client knew
        to be durable before the cut, and no push that the client had not sent by then."""
        status, resumed, term, seq, applied = self.found[state]
        if (status or applied != seq or term <= noted["term"]
                or not noted["durable"] <= seq <= noted["sent"] or noted["term"] and not resumed):
            self.illegal.append((noted, self.found[state], [(n, len(d)) for n, d in state]))


def cut_everywhere(ops, disk=None, since=0, noted=None):
    """Simulate a power cut after each operation from number `since` on. Returns (the StartChecker
    with the results, the number of directory states)."""
    checker, disk, count = StartChecker(), disk or crash_states.Disk(), 0
    noted = {"term": 0, "durable": 0, "sent": 0, **(noted or {})}
    cuts = []
    for i, op in enumerate(ops):
        disk.play(op)
        if op.kind == "note":
            noted = {**noted, op.name: op.at}
        if i >= since:
            states = disk.states()
            count += len(states)
            cuts += [(state, noted) for state in states]
    checker.start_all(dict.fromkeys(state for state, _ in cuts))
    for state, noted in cuts:
        checker.check(state, noted)
    return checker, count


def one_cycle(ops):
    """Returns a range of operations around one of the last checkpoints. In this range, only this
    checkpoint makes pushes durable, so a missing fsync of the checkpoint has an effect."""
    made = [i for i, op in enumerate(ops) if op.kind == "rename" and op.other.startswith("ckpt-")]
    begin = next(i for i in range(made[-3], len(ops)) if ops[i].kind == "sync"
                 and ops[i].name == ".")
    end = next(i for i in range(made[-1], 0, -1) if ops[i].kind == "open-empty")
    return begin + 1, end


@pytest.mark.parametrize("level", LEVELS)
def test_power_cut_after_every_operation(programs, figure, level):
    """Record every file operation of a server in two terms: starts, pushes, checkpoints and, at the
    end, a drain. Simulate a power cut after each operation."""
    ops = recorded(programs, level)
    checker, count = cut_everywhere(ops)
    refused = sum(bool(f[0]) for f in checker.found.values())
    figure("P4", refused,
           f"starts refused of {count} states ({len(checker.found)} different ones) after "
           f"{len(ops)} operations", refused == 0 and count > 500, what=f"{level} refused")
    figure("P4", len(checker.illegal), f"states that lost durable pushes or mix two generations "
           f"{checker.illegal[:2] or ''}", not checker.illegal, what=f"{level} illegal")


@pytest.mark.parametrize("level", LEVELS)
def test_second_power_cut_during_the_start(programs, figure, seed, level):
    """A real server starts on a directory that a power cut has left. The power fails again during
    this start."""
    ops, disk, noted, found = recorded(programs, level), crash_states.Disk(), {}, {}
    for op in ops:
        disk.play(op)
        if op.kind == "note":
            noted = {**noted, op.name: op.at}
        found.update((state, noted) for state in disk.states() if noted.get("durable"))
    chosen = random.Random(seed).sample(sorted(found), 40 if FULL else 3)
    count, wrong = 0, []
    for k, state in enumerate(chosen):
        place = programs.directory / f"again{k}"
        recorder = Recorder(programs, level, place)
        for name, data in state:
            (place / name).write_bytes(data)
        recorder.start()
        status = recorder.server.status()
        decided = sum(w["last_seq"] for w in status["workers"])
        weights = safetensors.flat(programs.export(recorder.server.endpoint))
        recorder.close()
        if not decided == -int(weights.sum()) == int((weights == -1).sum()):
            wrong.append((decided, weights.sum()))
        checker, tried = cut_everywhere(crash_states.read_log(recorder.log),
                                      crash_states.Disk(state), noted=found[state])
        count += tried
        wrong += checker.illegal
    figure("P4", len(wrong), f"illegal states of {count} after a second cut, in {len(chosen)} "
           f"starts {wrong[:2] or ''}", not wrong and count > len(chosen), what=f"{level} again")


FORGOTTEN = {"replay": {"files": lambda op: op.name != ".", "directory": lambda op: op.name == "."},
             "always": {"logs": lambda op: op.name.startswith("journal-")}}


@pytest.mark.parametrize("level,what", [(lv, what) for lv in LEVELS for what in FORGOTTEN[lv]])
def test_forgotten_fsyncs_are_found(programs, figure, level, what):
    """Test the enumeration of states itself: if some of the fsyncs around one checkpoint are
    removed from the log, the check must find illegal states."""
    ops = recorded(programs, level)
    since, until = one_cycle(ops)
    forgotten = FORGOTTEN[level][what]
    bad = [op for i, op in enumerate(ops[:until]) if i < since or op.kind != "sync"
           or not forgotten(op)]
    checker, count = cut_everywhere(bad, since=since)
    figure("P4", len(checker.illegal), f"illegal states of {count} found", bool(checker.illegal),
           what=f"{level} without {what}")

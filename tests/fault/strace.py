"""System calls as places to break: strace kills a process, or makes a call fail, at its Nth of a name.

strace counts calls for each thread and each name by itself.
"""
import collections
import os
import re
import shutil
import subprocess

from support.programs import Process, until


def unusable():
    """Why this machine cannot do it; None: it can."""
    if not shutil.which("strace"):
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else "strace: " + tried.stderr.strip()[-100:]


def threads(pid):
    """{thread id: its name}"""
    return {int(t): open(f"/proc/{pid}/task/{t}/comm").read().strip()
            for t in os.listdir(f"/proc/{pid}/task")}


def checkpointer(pid):
    """The one thread that writes checkpoints: needs UV_THREADPOOL_SIZE=1."""
    def find():
        named = threads(pid)
        return [t for t, name in named.items() if t != pid and name == named[pid]]
    found = until(find, 10, "a thread of libuv's pool")
    assert len(found) == 1, threads(pid)
    return found


def loop(pid):
    """The thread of the event loop."""
    return [pid]


def wire(pid):
    """libzmq's threads that read and write sockets."""
    return sorted(t for t, name in threads(pid).items() if "IO" in name)


def attach(programs, tids, *options):
    """An strace of some threads, once it watches them all."""
    named = [word for tid in tids for word in ("-p", str(tid))]
    tracer = programs.add(Process(f"strace {tids}", ["strace", *named, *map(str, options)]))
    for tid in tids:
        tracer.line(rf"Process {tid} attached")
    return tracer


def inject(name, fault, when):
    return ["-e", f"trace={name}", "-e", f"inject={name}:{fault}:when={when}"]


def kill_at(programs, tids, name, nth):
    """Kill the process with -9 when one of these threads enters its nth call of that name from now on."""
    return attach(programs, tids, "-o", "/dev/null", *inject(name, "signal=KILL", nth))


def calls(log):
    """The calls in an strace log, in order: [(name, the whole line)]."""
    found = [re.match(r"(?:\d+ +)?(\w+)\(", line) for line in log]
    return [(f[1], f.string) for f in found if f]


def watch(programs, tids, enough):
    """What threads call until enough(calls) is true."""
    log = programs.directory / f"strace-{tids[0]}"
    tracer = attach(programs, tids, "-o", log)

    def look():
        seen = calls(log.read_text(errors="replace").splitlines())
        return seen if enough(seen) else None
    try:
        return until(look, 20, f"enough system calls of {tids}")
    finally:
        tracer.signal(2)
        tracer.wait(10)


def count(seen):
    return collections.Counter(name for name, _ in seen)

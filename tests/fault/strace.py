"""Cause faults in system calls: when a process makes one system call for the Nth time, strace kills
the process or makes the call fail.

strace counts the calls of each thread and each system call separately.
"""
import collections
import os
import re
import shutil
import subprocess

from support.programs import Process, until


def unusable():
    """Returns the reason why strace cannot be used on this machine, or None if strace works."""
    if not shutil.which("strace"):
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else "strace: " + tried.stderr.strip()[-100:]


def threads(pid):
    """Returns {thread id: thread name} for the threads of a process."""
    return {int(t): open(f"/proc/{pid}/task/{t}/comm").read().strip()
            for t in os.listdir(f"/proc/{pid}/task")}


def checkpointer(pid):
    """Returns the thread that writes checkpoints. The process must have UV_THREADPOOL_SIZE=1."""
    def find():
        named = threads(pid)
        return [t for t, name in named.items() if t != pid and name == named[pid]]
    found = until(find, 10, "a thread of libuv's pool")
    assert len(found) == 1, threads(pid)
    return found


def loop(pid):
    """Returns a list of one thread id: that of the event loop."""
    return [pid]


def wire(pid):
    """Returns the ids of libzmq's threads that read and write sockets."""
    return sorted(t for t, name in threads(pid).items() if "IO" in name)


def attach(programs, tids, *options):
    """Attach strace to some threads. Returns when it traces all of them."""
    named = [word for tid in tids for word in ("-p", str(tid))]
    tracer = programs.add(Process(f"strace {tids}", ["strace", *named, *map(str, options)]))
    for tid in tids:
        tracer.line(rf"Process {tid} attached")
    return tracer


def inject(name, fault, when):
    return ["-e", f"trace={name}", "-e", f"inject={name}:{fault}:when={when}"]


def kill_at(programs, tids, name, nth):
    """Kill the process with SIGKILL when one of the threads `tids` enters its nth call of the
    system call `name` from now on."""
    return attach(programs, tids, "-o", "/dev/null", *inject(name, "signal=KILL", nth))


def calls(log):
    """Returns the system calls in a log of strace, in order, as [(name, the whole line)]."""
    found = [re.match(r"(?:\d+ +)?(\w+)\(", line) for line in log]
    return [(f[1], f.string) for f in found if f]


def watch(programs, tids, enough):
    """Trace the threads `tids` until enough(calls) is true for the list of the calls so far.
    Returns the traced calls."""
    log = programs.directory / f"strace-{tids[0]}"
    tracer = attach(programs, tids, "-o", log)

    def found():
        seen = calls(log.read_text(errors="replace").splitlines())
        return seen if enough(seen) else None
    try:
        return until(found, 20, f"enough system calls of {tids}")
    finally:
        tracer.signal(2)
        tracer.wait(10)


def count(seen):
    return collections.Counter(name for name, _ in seen)

"""Make control groups (cgroup v1 or v2) for tests. A control group is a set of processes whose CPU
time or memory the kernel limits."""
import os
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
PERIOD = 20000  # period of a limit on CPU time, in microseconds


class NoGroup(Exception):
    """Raised if this machine does not let the test make a control group."""


class Group:
    """A control group. `cpu` is the share of one CPU that the processes of the group get. `memory`
    is the limit of their memory in bytes."""

    def __init__(self, cpu=None, memory=None):
        self.members = []
        kind = "memory" if memory else "cpu"
        old = (TOP / kind).is_dir()
        self.place = (TOP / kind if old else TOP) / f"cnn-ps-{os.getpid()}"
        quota = int((cpu or 0) * PERIOD)
        settings = {(True, "cpu"): {"cpu.cfs_period_us": PERIOD, "cpu.cfs_quota_us": quota},
                    (False, "cpu"): {"cpu.max": f"{quota} {PERIOD}"},
                    (True, "memory"): {"memory.limit_in_bytes": memory},
                    (False, "memory"): {"memory.max": memory}}[old, kind]
        try:
            if not old:
                (TOP / "cgroup.subtree_control").write_text(f"+{kind}")
            self.place.mkdir()
            for name, value in settings.items():
                (self.place / name).write_text(str(value))
        except OSError as why:
            self.close()
            raise NoGroup(str(why)) from None

    def join(self, process):
        self.members.append(process)
        (self.place / "cgroup.procs").write_text(str(process.popen.pid))

    def close(self):
        for process in self.members:
            process.kill()
        if self.place.is_dir():
            self.place.rmdir()

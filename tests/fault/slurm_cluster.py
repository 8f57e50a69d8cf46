"""Starts a Slurm cluster of one node on this machine, with its own munge key and ports."""
import os
import secrets
import shutil
import socket
import subprocess

from support.build import without
from support.programs import Process, until

# cred_expire: Slurm waits for this time, in seconds, before it starts a requeued job; 5 s is the
# minimum
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
FirstJobId={first_job}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=preemptible Nodes=ALL MaxTime=INFINITE State=UP
"""


class NoSlurm(Exception):
    """Raised if this machine cannot run Slurm. The text of the exception gives the reason."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Slurm:
    """Starts munged, slurmctld and slurmd in the directory `home`. The path of `home` must be
    short, because the path of a Unix socket has at most 107 bytes."""

    def __init__(self, programs, home, gpus=2, first_job=1):
        self.programs, self.home, self.host = programs, home, socket.gethostname().split(".")[0]
        self.env = {"SLURM_CONF": str(home / "slurm.conf")}
        self.daemons = []
        missing = [p for p in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(p)]
        if missing:
            without(" ".join(missing), "deploy/setup.sh")
        for name in ("state", "spool"):
            (home / name).mkdir()
        self._start_munge()
        user = subprocess.run(["id", "-un"], stdout=subprocess.PIPE, text=True, check=True).stdout
        (home / "slurm.conf").write_text(CONFIG.format(
            host=self.host, ports=[free_port(), free_port()], user=user.strip(), home=home,
            gpus=gpus, cpus=4 * gpus, first_job=first_job))
        for n in range(gpus):
            (home / f"gpu{n}").touch()
        (home / "gres.conf").write_text(
            f"NodeName={self.host} Name=gpu File={home}/gpu[0-{gpus - 1}]\n")
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D", "-N", self.host)
        until(lambda: "idle" in self("sinfo", "-h", "-o", "%T", check=False), 30, "an idle node")

    def _start(self, *argv):
        self.daemons.append(self.programs.add(Process(argv[0], argv, self.env)))

    def _start_munge(self):
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        at = [f"--{what}={self.home}/munge.{end}" for what, end in (
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"),
            ("seed-file", "seed"))]
        self._start("munged", "--foreground", "--force", *at)
        munged, = self.daemons

        def works():
            if not munged.running():
                raise NoSlurm("munge cannot start: " + munged.tail())
            return (self.home / "munge.socket").exists()
        until(works, 20, "munge's socket")

    def __call__(self, *argv, env=None, check=True):
        """Run a command of Slurm. Returns its output."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CNN_", "SLURM_", "RUN_"))}
        done = subprocess.run([str(a) for a in argv], env=dict(clean, **self.env, **(env or {})),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}"
        return done.stdout

    def submit(self, script, *arguments, options=(), **env):
        """Submit a script. Returns the job's number."""
        log = self.home / "out-%A-%a.txt" if "--array" in " ".join(options) else self.home / "out-%j.txt"
        return self("sbatch", "--parsable", "--chdir", self.home, "-o", log, *options, script,
                    *arguments, env=env).strip()

    def state(self, job):
        """Returns the state of a job, such as PENDING or RUNNING, or "" after Slurm has removed the
        job."""
        return self("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()

    def output(self, job):
        files = sorted(self.home.glob(f"out-{job}*.txt"))
        return "".join(f.read_text(errors="replace") for f in files)

    def close(self):
        """End all jobs and the daemons."""
        if len(self.daemons) == 3 and self.daemons[1].running():
            self("scancel", "-u", str(os.getuid()), check=False)
            self("scancel", "-s", "KILL", "-u", str(os.getuid()), check=False)
            until(lambda: not self("squeue", "-h", check=False).strip(), 30, "no jobs")
        for daemon in reversed(self.daemons):
            daemon.signal(15)
        for daemon in reversed(self.daemons):
            daemon.wait(20)

"""Start a server and workers on this machine: python -m cnnps.run --workers 8 train.py [ARGUMENT...]

Every worker runs the script. The first call of cnnps.torch.train() in any worker starts the server
with the options of this call, and all workers train with this server. If a worker fails or a signal
kills the server, it is started again; the server continues from its checkpoint. A worker that
starts after the end of the run gets the final weights. RANK, LOCAL_RANK and WORLD_SIZE have the
same meaning as with torchrun. OMP_NUM_THREADS, unless it is set, becomes the number of processors
per worker.

  --workers N         number of workers (default: the number of processors)
  --server URL        use a server that runs elsewhere, and start none
  --dir DIR           keep the run in DIR: its checkpoints in DIR/checkpoints, and its last line of
                      output in DIR/result.json; if DIR has checkpoints, their run continues
                      (default: a temporary directory)
  --max-restarts N    maximum number of restarts, of workers and server together (default 10)
  --OPTION=VALUE      an option of cnn-ps; it overrides the script's value; the = is required
  --OPTION, --no-OPTION
                      an option of cnn-ps that is on or off, such as --prefetch
  -m MODULE           run a module instead of a script file
  ARGUMENT...         all words after the script or module are arguments of the script

Exit status:
  0    every worker ended with status 0
  1    a worker failed before it called train(), or too often, or after the end of the run; the
       server did not start, or it ended with an error
  2    wrong usage: an option, a script that does not exist, or a DIR that cannot be used
  130  stopped by Ctrl-C (SIGINT)
  143  stopped by SIGTERM
After one of these signals a worker has 10 s to end; a second signal kills it.
"""
import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Union

from ._scratch import Scratch
from .errors import Error
from .launched import ADDRESS, DIRECTORY, RESULT, WANTED, for_training, read, write
from .programs import tied
from .server import Server

Overrides = Dict[str, Union[str, bool]]
_GRACE = 10  # maximum time that a worker may take to end after SIGTERM, in seconds


def _processors() -> int:
    """Returns the number of processors that this process may use, which taskset or Slurm may
    limit."""
    return len(os.sched_getaffinity(0))


def say(line: str) -> None:
    print(f"cnnps.run: {line}", file=sys.stderr, flush=True)


class _Stopped(BaseException):
    """The launcher has received SIGINT or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Launcher:
    def __init__(self, options: argparse.Namespace, overrides: Overrides, run: Path) -> None:
        self.options, self.overrides, self.run_dir = options, overrides, run
        self.server: Optional[Server] = None
        self.workers: "Dict[int, subprocess.Popen[bytes]]" = {}
        self.restarts = self.status = 0
        self.is_running = False  # true while run() runs, so that a signal must end it

    def start_worker(self, rank: int) -> None:
        n = self.options.workers
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n))
        # each of the n workers gets an equal part of the processors
        env.setdefault("OMP_NUM_THREADS", str(max(1, _processors() // n)))
        if self.options.server:
            env["CNN_SERVER"] = self.options.server
        else:
            env.pop("CNN_SERVER", None)
            env[DIRECTORY] = str(self.run_dir)
        script = (["-m"] if self.options.m else []) + [self.options.script]
        self.workers[rank] = subprocess.Popen(
            tied([sys.executable, *script, *self.options.arguments], "TERM"), env=env)

    def may_restart(self, what: str) -> bool:
        self.restarts += 1
        if self.restarts > self.options.max_restarts:
            say(f"{what}; no restart is left")
            return False
        say(f"{what}; starting it again")
        return True

    def start_server(self) -> None:
        wanted = read(self.run_dir / WANTED, 1)
        wanted = for_training({**wanted, **self.overrides})
        if wanted.get("checkpoint_dir") is None:
            wanted["checkpoint_dir"] = str(self.run_dir / "checkpoints")
        try:
            self.server = Server(**wanted)
        except TypeError as why:  # an option from the launcher's command line has a wrong type
            raise Error(str(why)) from why
        write(self.run_dir / ADDRESS, {"endpoint": self.server.endpoint,
                                       "checkpoint_dir": self.server.checkpoint_dir,
                                       "has_key": self.server.has_key,
                                       "key": os.path.abspath(self.server.options["key"])
                                       if self.server.has_key else None})
        say(f"server {self.server.endpoint}, process {self.server.pid}")

    def tend_server(self) -> bool:
        """Starts the server if a worker needs it, or if it has died. Returns False if the number of
        restarts is used up."""
        if self.server is None:
            if (self.run_dir / WANTED).exists() and not self.options.server:
                self.start_server()
        elif not self.server.running() and not (self.run_dir / RESULT).exists():
            status = self.server.returncode() or 0
            if status == 0:
                write(self.run_dir / RESULT, self.server.wait(10))
            elif status > 0:  # a restarted server would end in the same way
                say(f"the server ended with status {status}:\n{self.server.tail()}")
                return False
            elif self.may_restart(f"the server ended with status {status}"):
                self.server.restart()
            else:
                return False
        return True

    def has_begun(self) -> bool:
        """Returns True if a worker has called train(). With --server the launcher cannot know this,
        so the result is always True."""
        return bool(self.options.server) or (self.run_dir / WANTED).exists()

    def tend_workers(self) -> bool:
        for rank, worker in list(self.workers.items()):
            status = worker.poll()
            if status == 0:
                del self.workers[rank]
            elif status is not None:
                if (self.run_dir / RESULT).exists():
                    say(f"worker {rank} ended with status {status} after the end of the run")
                    del self.workers[rank]
                    self.status = 1
                    continue
                # before train(), a restarted worker would most likely fail in the same way
                if status > 0 and not self.has_begun():
                    say(f"worker {rank} ended with status {status} before it called train()")
                    return False
                if not self.may_restart(f"worker {rank} ended with status {status}"):
                    return False
                self.start_worker(rank)
        return True

    def stop(self, number: int, frame: object) -> None:
        """Handles SIGINT and SIGTERM. The first signal ends run(); a later one kills the workers,
        for which close() waits."""
        if self.is_running:
            self.is_running = False
            raise _Stopped(number)
        for worker in list(self.workers.values()):
            worker.kill()

    def run(self) -> int:
        self.is_running = True
        for rank in range(self.options.workers):
            self.start_worker(rank)
        while self.workers:
            if not self.tend_server() or not self.tend_workers():
                return 1
            time.sleep(0.05)
        return self.status

    def close(self) -> None:
        self.is_running = False
        for worker in self.workers.values():
            worker.terminate()
        end = time.monotonic() + _GRACE
        for worker in self.workers.values():
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        if self.server:
            self.server.close()
        tidy(self.run_dir, keep=RESULT)


def tidy(run: Path, keep: str = "") -> None:
    """Deletes the files with which launcher and workers of one run find each other."""
    for path in [*(run / name for name in (ADDRESS, RESULT, WANTED)),
                 *run.glob("init-*.safetensors")]:
        if path.name != keep:
            path.unlink(missing_ok=True)


def lock(run: Path) -> None:
    """Creates the directory of a run, and locks it until this process ends."""
    run.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(f"{run}: another cnnps.run uses this directory") from None
    tidy(run)


def override(word: str) -> "tuple[str, Union[str, bool]]":
    """Returns the name and the value of an option of cnn-ps, --lr=0.1, --prefetch or
    --no-prefetch."""
    name, equals, value = word[2:].partition("=")
    if not equals:
        is_on = not name.startswith("no-")
        return (name if is_on else name[3:]).replace("-", "_"), is_on
    switch = {"true": True, "false": False}.get(value.lower(), value)
    return name.replace("-", "_"), switch


def parse(argv: List[str]) -> "tuple[argparse.Namespace, Overrides]":
    parser = argparse.ArgumentParser(
        prog="python -m cnnps.run", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=_processors(), help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--dir", help=argparse.SUPPRESS)
    parser.add_argument("--max-restarts", type=int, default=10, help=argparse.SUPPRESS)
    parser.add_argument("-m", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    own = ("--workers", "--server", "--dir", "--max-restarts", "--help")
    overrides: Overrides = {}
    rest: List[str] = []
    last = ""  # the last option without a value
    for i, word in enumerate(argv):
        if not word.startswith("-") and not (i and argv[i - 1] in own):
            rest += argv[i:]
            break
        if word.startswith("--") and word != "--" and word.partition("=")[0] not in own:
            overrides.update([override(word)])
            last = word if "=" not in word else last
        else:
            rest.append(word)
    options = parser.parse_args(rest)
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: at least 1")
    if options.max_restarts < 0:
        parser.error(f"--max-restarts {options.max_restarts}: at least 0")
    if not options.m and not os.path.exists(options.script):
        parser.error(f"{options.script}: no such script (a module needs -m"
                     + (f", and a value of {last} needs {last}={options.script})" if last else ")"))
    return options, overrides


def main(argv: Optional[List[str]] = None) -> int:
    options, overrides = parse(sys.argv[1:] if argv is None else argv)
    with Scratch("cnnps-run-") as temporary:
        run = Path(options.dir or temporary).resolve()
        try:
            lock(run)
        except OSError as why:
            say(f"--dir: {why}")
            return 2
        launcher = Launcher(options, overrides, run)
        handlers = {number: signal.signal(number, launcher.stop)
                    for number in (signal.SIGINT, signal.SIGTERM)
                    if signal.getsignal(number) is not signal.SIG_IGN}
        try:
            return launcher.run()
        except _Stopped as why:
            return 128 + why.number
        except Error as why:
            say(str(why))
            return 1
        finally:
            launcher.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())

"""Start a server and workers on this machine: python -m cnnps.run --workers 8 train.py [ARGUMENT...]

Every worker runs the script. The first call of cnnps.torch.train() in any worker starts the server
with the options of this call, and all workers train with this server. If a worker or the server
dies, it is started again; the server continues from its checkpoint. RANK and WORLD_SIZE have the
same meaning as with torchrun. Exit status: 0 if every worker ended with status 0.

  --workers N         number of workers (default: the number of processors)
  --server URL        use a server that runs elsewhere, and start none
  --dir DIR           directory of the run and its checkpoints; if it has checkpoints, their run
                      continues (default: a temporary directory)
  --max-restarts N    maximum number of restarts, of workers and server together (default 10)
  --OPTION=VALUE      an option of cnn-ps; it overrides the script's value; the = is required
  -m MODULE           run a module instead of a script file
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional

from .errors import Error
from .launched import ADDRESS, DIRECTORY, RESULT, WANTED, read, write
from .programs import tied
from .server import Server

_GRACE = 10  # seconds that a worker may take to end after SIGTERM


def _processors() -> int:
    """Returns the number of processors that this process may use, which taskset or Slurm may
    limit."""
    return len(os.sched_getaffinity(0))


def say(line: str) -> None:
    print(f"cnnps.run: {line}", file=sys.stderr, flush=True)


class Launcher:
    def __init__(self, options: argparse.Namespace, overrides: Dict[str, str], run: Path) -> None:
        self.options, self.overrides, self.run_dir = options, overrides, run
        self.server: Optional[Server] = None
        self.workers: "Dict[int, subprocess.Popen[bytes]]" = {}
        self.restarts = self.status = 0

    def start_worker(self, rank: int) -> None:
        n = self.options.workers
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n))
        # n workers share the processors
        env.setdefault("OMP_NUM_THREADS", str(max(1, _processors() // n)))
        if self.options.server:
            env["CNN_SERVER"] = self.options.server
        else:
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
        wanted.update(self.overrides)
        wanted.setdefault("checkpoint_dir", str(self.run_dir / "checkpoints"))
        self.server = Server(**wanted)
        write(self.run_dir / ADDRESS, {"endpoint": self.server.endpoint,
                                       "checkpoint_dir": self.server.checkpoint_dir})
        say(f"server {self.server.endpoint}, process {self.server.pid}")

    def tend_server(self) -> bool:
        """Starts the server if a worker needs it, or if it has died. Returns False if the number of
        restarts is used up."""
        if self.server is None:
            if (self.run_dir / WANTED).exists() and not self.options.server:
                self.start_server()
        elif not self.server.running() and not (self.run_dir / RESULT).exists():
            if self.server.returncode() == 0:
                write(self.run_dir / RESULT, self.server.wait(10))
            elif self.may_restart(f"the server ended with status {self.server.returncode()}"):
                self.server.restart()
            else:
                return False
        return True

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
                if not self.may_restart(f"worker {rank} ended with status {status}"):
                    return False
                self.start_worker(rank)
        return True

    def run(self) -> int:
        for rank in range(self.options.workers):
            self.start_worker(rank)
        while self.workers:
            if not self.tend_server() or not self.tend_workers():
                return 1
            time.sleep(0.05)
        return self.status

    def close(self) -> None:
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


def parse(argv: List[str]) -> "tuple[argparse.Namespace, Dict[str, str]]":
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
    own = ("--workers", "--server", "--dir", "--max-restarts")
    overrides: Dict[str, str] = {}
    rest = list(argv)
    for i, word in enumerate(argv):
        if not word.startswith("-"):
            if i and argv[i - 1] in own:
                continue
            break
        name, equals, value = word[2:].partition("=")
        if equals and "--" + name not in own:
            overrides[name.replace("-", "_")] = value
            rest.remove(word)
    options = parser.parse_args(rest)
    if options.workers < 1:
        parser.error("--workers is at least 1")
    return options, overrides


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Optional[List[str]] = None) -> int:
    options, overrides = parse(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _stop)
    with tempfile.TemporaryDirectory(prefix="cnnps-run-") as temporary:
        run = Path(options.dir or temporary).resolve()
        run.mkdir(parents=True, exist_ok=True)
        for name in (ADDRESS, RESULT, WANTED):
            (run / name).unlink(missing_ok=True)
        launcher = Launcher(options, overrides, run)
        try:
            return launcher.run()
        except KeyboardInterrupt:
            return 130
        except Error as why:
            say(str(why))
            return 1
        finally:
            launcher.close()


if __name__ == "__main__":
    sys.exit(main())

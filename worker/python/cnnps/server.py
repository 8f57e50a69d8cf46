"""A cnn-ps server that this Python process starts, for notebooks, examples and tests."""
import json
import re
import subprocess
import tempfile
import threading
import time
from types import TracebackType
from typing import Any, Dict, List, Literal, Optional, Type, Union

from .client import Client, connect
from .errors import Error
from .programs import environment, export, find, tied

_TAIL = 20  # number of log lines in the text of an error


def option(name: str, value: Any) -> List[str]:
    """Returns an option as the words of a command line: lr=0.1 gives --lr 0.1, x=False gives
    --no-x, and x=None gives no word."""
    word = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{word}" if value else f"--no-{word}"]
    return [f"--{word}", str(value)]


class Server:
    """A server process. The options are those of `cnn-ps --help`, with underscores:

        with cnnps.Server(model="vector:1000", epochs=3, batch_size=32, lr=0.1) as server:
            ... cnnps.connect(server.endpoint, data=...) ...

    Without checkpoint_dir the checkpoints are in a temporary directory, which close() deletes.
    checkpoint_dir=False: the server writes no checkpoints, and restart() begins a new run.
    The server ends when the Python process ends, even if the Python process is killed.
    """

    def __init__(self, bind: str = "tcp://127.0.0.1:0",
                 checkpoint_dir: Union[str, None, Literal[False]] = None, **options: Any) -> None:
        self._temporary = (tempfile.TemporaryDirectory(prefix="cnn-ps-")
                           if checkpoint_dir is None else None)
        self.checkpoint_dir = self._temporary.name if self._temporary else str(checkpoint_dir or "")
        self.options = options
        self.log: List[str] = []
        self.endpoint = bind
        self._process: "Optional[subprocess.Popen[str]]" = None
        self._threads: List[threading.Thread] = []
        self._result: Optional[Dict[str, Any]] = None
        self.restart()

    def restart(self) -> None:
        """Kills the server and starts it again at the same address, where it continues from its
        checkpoint."""
        self.kill()
        argv = [find("cnn-ps"), "--bind", self.endpoint]
        argv += option("checkpoint_dir", self.checkpoint_dir or None)
        for name, value in self.options.items():
            argv += option(name, value)
        self._up, self._listens = threading.Event(), False
        started = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(argv, started), daemon=True)]
        self._threads[0].start()
        if not started.wait(60) or self._process is None:
            raise Error(f"cannot start {argv[0]}")
        self._threads.append(
            threading.Thread(target=self._read_log, args=(self._process,), daemon=True))
        self._threads[1].start()
        if not self._up.wait(60) or not self._listens:
            self.kill()
            raise Error(f"cnn-ps did not start:\n{self.tail()}")

    def _keep(self, argv: List[str], started: threading.Event) -> None:
        """Starts the server, and reads its output until the server ends. If this thread ends first,
        the system kills the server with SIGKILL. With SIGTERM, the server would end its workers,
        although another process may continue the run."""
        try:
            self._process = subprocess.Popen(
                tied(argv, "KILL"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", env=environment(),
                start_new_session=True)
        finally:
            started.set()
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                self._result = json.loads(line)
        self._process.wait()

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr
        for line in process.stderr:
            self.log.append(line.rstrip("\n"))
            found = re.search(r"net listening.* endpoint=(\S+)", line)
            if found:
                self.endpoint = found[1]
                self._listens = True
                self._up.set()
        self._up.set()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def returncode(self) -> Optional[int]:
        """Returns the exit status of the server, or None if it is running."""
        return self._process.poll() if self._process else None

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        return "\n".join(self.log[-_TAIL:])

    def wait(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Waits until the run ends. Returns its result: the last line of output of cnn-ps,
        parsed."""
        assert self._process
        code = self._process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        if code or self._result is None:
            raise Error(f"cnn-ps ended with status {code}:\n{self.tail()}")
        return self._result

    def connect(self, **options: Any) -> Client:
        return connect(self.endpoint, **options)

    def export(self, file: str) -> None:
        """Writes the newest weights to a .safetensors file. If the server has the option `init`,
        the tensors have the names of the tensors in the file `init`."""
        if self.running():
            with self.connect(observer=True) as client:
                client.checkpoint()
        export(self.checkpoint_dir, file)

    def kill(self) -> None:
        """Kills the server with SIGKILL, as a crash would. restart() continues the run."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(5)

    def close(self) -> None:
        """Ends the server, which writes a last checkpoint, and deletes the temporary directory."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            end = time.monotonic() + 30
            while self._process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
        self.kill()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

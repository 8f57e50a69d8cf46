"""A cnn-ps server that this Python process starts, for notebooks, examples and tests."""
import json
import os
import re
import subprocess
import threading
import time
from types import TracebackType
from typing import Any, Dict, List, Literal, Optional, Type, Union

from . import _arguments as check
from ._scratch import Scratch
from .client import Client, connect
from .errors import AgainError, Error, UsageError
from .programs import environment, export, find, tied

_TAIL = 20  # maximum number of log lines in the text of an error
_START = 60  # maximum time from the start of cnn-ps until workers can connect, in seconds
_USAGE = 2  # exit status of cnn-ps if an option is wrong


def option(name: str, value: Any) -> List[str]:
    """Returns an option as the words of a command line: lr=0.1 gives --lr=0.1, x=False gives
    --no-x, and x=None gives no word."""
    word = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{word}" if value else f"--no-{word}"]
    return [f"--{word}={check.word(name, value)}"]


def mistaken(name: str, value: Any, log: str) -> str:
    """Returns an explanation, in terms of Python, why cnn-ps has refused an option. The function
    finds two reasons in the log: the option is a bool but needs a value, or it has a value but must
    be a bool. Returns "" for any other reason."""
    word = re.escape(name.replace("_", "-"))
    if value is True and re.search(rf"--{word}: (needs a value|\"--)", log) or (
            value is False and re.search(rf"--no-{word}: unknown", log)):
        return f"\n{name}={value}: expected a value, not a bool"
    if re.search(rf"--{word}: takes no value", log):
        return f"\n{name}={value!r}: expected True or False"
    return ""


def check_options(options: Dict[str, Any]) -> None:
    """Raises TypeError or UsageError if an argument of Server cannot be an option of cnn-ps."""
    bind, directory = options.get("bind", ""), options.get("checkpoint_dir")
    if not isinstance(bind, str):
        raise TypeError(f"bind: expected a text, not {type(bind).__name__}")
    if directory is not None and directory is not False:
        check.path("checkpoint_dir", directory)
    for name, value in options.items():
        option(name, value)


def without_keys(options: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the options of connect() with "" for each missing key, so that connect() ignores
    $CNN_KEY and $CNN_SERVER_KEY."""
    return {**options, **{name: options.get(name) or "" for name in ("key", "server_key")}}


class Server:
    """A server process. The options are those of `cnn-ps --help`, with underscores:

        with cnnps.Server(model="vector:1000", epochs=3, batch_size=32, lr=0.1) as server:
            ... cnnps.connect(server.endpoint, data=...) ...

    Without checkpoint_dir the checkpoints are in a temporary directory, which close() deletes.
    checkpoint_dir=False: the server writes no checkpoints, and restart() begins a new run. An
    option that cnn-ps refuses raises UsageError with the message of cnn-ps. The attribute `log` has
    the lines of the server's log. log_level must be "info" or "debug", because the log has the
    server's address. The server ends when the Python process ends, even if the Python process is
    killed. A forked child may connect to the server, but neither ends nor restarts it.
    """

    def __init__(self, bind: str = "tcp://127.0.0.1:0",
                 checkpoint_dir: Union[str, "os.PathLike[str]", None, Literal[False]] = None,
                 **options: Any) -> None:
        if options.get("log_level") not in (None, "info", "debug"):
            raise UsageError(f"log_level={options['log_level']!r}: expected 'info' or 'debug', "
                             "because the log has the server's address")
        check_options({"bind": bind, "checkpoint_dir": checkpoint_dir, **options})
        self._pid = os.getpid()
        self._temporary = Scratch("cnn-ps-") if checkpoint_dir is None else None
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
        # sort options without a value to the end, because cnn-ps would take the word after such an
        # option for its value
        for name, value in sorted(self.options.items(), key=lambda one: one[1] is True):
            argv += option(name, value)
        self._up, self._listens = threading.Event(), False
        started = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(argv, started), daemon=True)]
        self._threads[0].start()
        if not started.wait(_START) or self._process is None:
            raise Error(f"cannot start {argv[0]}")
        self._threads.append(
            threading.Thread(target=self._read_log, args=(self._process,), daemon=True))
        self._threads[1].start()
        is_late = not self._up.wait(_START)
        if not self._listens:
            if not is_late:
                self._threads[0].join(5)
            code = self._process.poll()
            self.kill()
            if code == _USAGE:
                raise UsageError(self.tail() + "".join(
                    mistaken(name, value, self.tail()) for name, value in self.options.items()))
            raise Error(f"cnn-ps did not start{f' within {_START} s' if is_late else ''}:\n"
                        f"{self.tail()}")

    def _keep(self, argv: List[str], started: threading.Event) -> None:
        """Starts the server, and reads its output until the server ends. If this thread ends first,
        because the Python process was killed, the system kills the server with SIGKILL. With
        SIGTERM, the server would also end its workers, although another process may start a server
        that continues the run."""
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
            found = re.search(r'net listening.*\bendpoint(?:=|":")([^\s"]+)', line)
            if found:
                self.endpoint = found[1]
                self._listens = True
                self._up.set()
        self._up.set()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError("this server belongs to the parent process")

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def returncode(self) -> Optional[int]:
        """Returns the exit status of the server, or None if it is running."""
        self._check()
        return self._process.poll() if self._process else None

    def running(self) -> bool:
        self._check()
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        return "\n".join(self.log[-_TAIL:])

    def wait(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Waits until the run ends. Returns its result: the last line of output of cnn-ps, parsed.
        Raises AgainError if this takes more than `timeout` seconds."""
        self._check()
        assert self._process
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AgainError(f"the run has not ended within {timeout:g} s") from None
        for thread in self._threads:
            thread.join(5)
        if code or self._result is None:
            raise Error(f"cnn-ps ended with status {code}:\n{self.tail()}")
        return self._result

    def connect(self, **options: Any) -> Client:
        """Connects as cnnps.connect() does. For a server without the option `key`, $CNN_KEY and
        $CNN_SERVER_KEY have no effect."""
        return connect(self.endpoint, **options if self.has_key else without_keys(options))

    @property
    def has_key(self) -> bool:
        return self.options.get("key") is not None

    def export(self, file: str) -> None:
        """Writes the newest weights to a .safetensors file. If the server has the option `init`,
        the tensors have the names of the tensors in the file `init`."""
        if self.running():
            with self.connect(observer=True) as client:
                client.checkpoint()
        export(self.checkpoint_dir, file)

    def kill(self) -> None:
        """Kills the server with SIGKILL, which has the same effect as a crash. restart() continues
        the run."""
        self._check()
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(5)

    def close(self) -> None:
        """Ends the server, which writes a last checkpoint, and deletes the temporary directory.
        Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
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

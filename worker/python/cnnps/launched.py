"""Lets all workers of the launcher `python -m cnnps.run` use one server.

The launcher owns the server, so that the server outlives each worker. The first worker that needs
the server writes the options of the server to the directory of the run. When the launcher finds
these options, it starts the server and writes the server's address to the same directory. Without a
launcher, each process starts a server of its own.
"""
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Optional

from . import _arguments as check
from .client import Client, connect
from .errors import Done, Error, ShutdownError, UnreachableError, UsageError
from .server import Server, check_options, without_keys

DIRECTORY = "CNNPS_RUN_DIR"
WANTED, ADDRESS, RESULT = "wanted.json", "address.json", "result.json"
_SECONDS = 120
_EPOCHS = 3  # default number of epochs
# time limit of one attempt to connect, in seconds; after each failed attempt, connect() checks
# whether the run has ended
_PATIENCE = 3


def write(path: Path, content: Dict[str, Any]) -> None:
    """Creates a file atomically, with `content` as JSON. Values of types that JSON lacks, such as
    paths, become JSON strings. An existing file stays as it is."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content, default=str), encoding="utf-8")
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    part.unlink()


def read(path: Path, seconds: float) -> Dict[str, Any]:
    """Waits until a file exists, for at most `seconds`. Returns its content."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise Error(f"the launcher wrote no {path.name} in {seconds:g} s")
        time.sleep(0.02)
    content: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def check_checkpoints(checkpoint_dir: Any) -> None:
    if checkpoint_dir is not None and not checkpoint_dir:
        raise UsageError(f"checkpoint_dir={checkpoint_dir!r}: train() needs checkpoints, because "
                         "it reads the final weights from the last one")


def check_init(options: Dict[str, Any]) -> None:
    if "init" in options:
        raise TypeError("init: train() takes the initial weights from `model`, and gives the "
                        "server the options model, init and metrics itself")


def worker_keys(server_key: Any) -> Dict[str, str]:
    """Returns the options of connect() for the worker's keys. The files of these keys are beside
    the secret key of the server. Raises UsageError if there are no such keys."""
    place = os.path.dirname(os.path.abspath(server_key))
    found = {"key": os.path.join(place, "worker.key"),
             "server_key": os.path.join(place, "server.pub")}
    if os.path.realpath(server_key) == os.path.realpath(found["key"]):
        raise UsageError(f"key={server_key}: train() starts the server, so `key` names the secret "
                         "key of the server, such as server.key beside it")
    for path in found.values():
        if not os.path.exists(path):
            raise UsageError(f"key={server_key}: the worker needs {path}, which `cnn-ctl keygen` "
                             "writes to the same directory")
    return found


def was_drained(result: Dict[str, Any]) -> bool:
    """Returns True if the run ended before its last epoch for another reason than the rules stop_at
    and patience_epochs."""
    return result.get("status") == "drained" and not result.get("stop_rule")


def for_training(options: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the options of cnnps.Server for a run of train(). Without `epochs`, adds the default
    that cnn-ps has for models with a data set: for a model vector:N, cnn-ps itself would assume a
    run without a data set and without epochs."""
    check_checkpoints(options.get("checkpoint_dir"))
    epochs = options.get("epochs")
    if epochs is not None and re.fullmatch(r"[-+]?0*", str(epochs)):
        raise UsageError(f"epochs={epochs}: train() needs at least 1 epoch, because the server "
                         "grants no leases in a run without epochs")
    return {**options, "epochs": _EPOCHS if epochs is None else epochs}


# true: this process has trained to the end of the run of its launcher
_has_trained = False


class Shared:
    """The server of this run: `server` if it is given, else that of the launcher, else a new one.
    `options` are the options of cnnps.Server for a new server. Under a launcher only the options of
    the first worker have an effect. The attribute `directory` is the path of the directory with the
    server's checkpoints."""

    def __init__(self, server: Optional[Server] = None, **options: Any) -> None:
        run = None if server else os.environ.get(DIRECTORY)
        self._own: Optional[Server] = None
        self._server = server
        self._keys: Dict[str, str] = {}
        if options.get("key") is not None:
            options["key"] = os.path.abspath(check.path("key", options["key"]))
        self._run = Path(run) if run else None
        if server and not server.running():
            raise UsageError("this server has ended: start another one, or call restart()")
        if self._run:
            if _has_trained:
                raise UsageError("one call of train() in a script is possible with "
                                 "`python -m cnnps.run`, because it runs one server")
            wanted = for_training(options)
            # check the types here, because the launcher cannot raise an exception in the caller
            check_options(wanted)
            write(self._run / WANTED, wanted)
            address = read(self._run / ADDRESS, _SECONDS)
            self.endpoint: str = address["endpoint"]
            self.directory: str = address["checkpoint_dir"]
            self._has_key: bool = address["has_key"]
            if self._has_key and options.get("key") == address["key"]:
                self._keys = worker_keys(address["key"])
        else:
            if not server:
                if options.get("key") is not None:
                    self._keys = worker_keys(options["key"])
                self._server = server = self._own = Server(**for_training(options))
            self.endpoint, self.directory = server.endpoint, server.checkpoint_dir
            self._has_key = server.has_key

    def _has_ended(self) -> bool:
        if self._server:
            return self._server.returncode() == 0
        return self._run is not None and (self._run / RESULT).exists()

    def _ended(self, seconds: float = 0) -> bool:
        """Waits up to `seconds` for the end of the run."""
        end = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < end:
            time.sleep(0.02)
        return self._has_ended()

    def connect(self, **options: Any) -> Optional[Client]:
        """Connects to the server. Returns None if the run ends before this worker is connected."""
        end = time.monotonic() + _SECONDS
        options = {**options, **self._keys} if self._has_key else without_keys(options)
        while not self._ended():
            try:
                return connect(self.endpoint, connect_timeout=_PATIENCE, **options)
            except Done:
                return None
            except UnreachableError:
                if time.monotonic() > end:
                    raise
            except Error as why:
                # a server that is about to exit refuses workers in several ways
                if not self._ended(_PATIENCE if self._run or isinstance(why, ShutdownError) else 0):
                    raise
        return None

    def result(self) -> Dict[str, Any]:
        """Waits for the end of the run. Returns the last line of output of cnn-ps, parsed from
        JSON."""
        global _has_trained
        if self._server:
            return self._server.wait(_SECONDS)
        assert self._run
        found = read(self._run / RESULT, _SECONDS)
        _has_trained = True
        return found

    def close(self) -> None:
        if self._own:
            self._own.close()

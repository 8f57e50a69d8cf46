"""Lets all workers of the launcher `python -m cnnps.run` use one server.

The launcher owns the server, so that the server outlives each worker. The first worker that needs
the server writes the options of the server to the directory of the run. When the launcher finds
these options, it starts the server and writes the server's address to the same directory. Without a
launcher, each process starts a server of its own.
"""
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

from .client import Client, connect
from .errors import Error, UnreachableError
from .server import Server

DIRECTORY = "CNNPS_RUN_DIR"
WANTED, ADDRESS, RESULT = "wanted.json", "address.json", "result.json"
_SECONDS = 120
# time limit in seconds of an attempt to connect; between two attempts, check whether the run has
# ended
_PATIENCE = 3


def write(path: Path, content: Dict[str, Any]) -> None:
    """Creates a file atomically, with `content` as JSON. An existing file stays as it is."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content), encoding="utf-8")
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


class Shared:
    """The server of this run. `options` are the options of cnnps.Server. Under a launcher only the
    options of the first worker have an effect. The attribute `directory` names the directory with
    the server's checkpoints."""

    def __init__(self, **options: Any) -> None:
        run = os.environ.get(DIRECTORY)
        self._own: Optional[Server] = None
        self._run = Path(run) if run else None
        if self._run:
            write(self._run / WANTED, options)
            address = read(self._run / ADDRESS, _SECONDS)
            self.endpoint: str = address["endpoint"]
            self.directory: Optional[str] = address["checkpoint_dir"]
        else:
            self._own = Server(**options)
            self.endpoint, self.directory = self._own.endpoint, self._own.checkpoint_dir

    def _ended(self) -> bool:
        return self._run is not None and (self._run / RESULT).exists()

    def connect(self, **options: Any) -> Optional[Client]:
        """Connects to the server. Returns None if the run ends before this worker is connected."""
        end = time.monotonic() + _SECONDS
        while not self._ended():
            try:
                return connect(self.endpoint, connect_timeout=_PATIENCE, **options)
            except UnreachableError:
                if time.monotonic() > end:
                    raise
        return None

    def result(self) -> Dict[str, Any]:
        """Waits for the end of the run. Returns the last line of output of cnn-ps, parsed."""
        if self._own:
            return self._own.wait(_SECONDS)
        assert self._run
        return read(self._run / RESULT, _SECONDS)

    def close(self) -> None:
        if self._own:
            self._own.close()

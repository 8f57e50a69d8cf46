"""One server for all workers that `python -m cnnps.run` started.

The launcher owns the server, so that it outlives each worker. The first worker that needs the
server writes its options to the directory of the run; the launcher starts it there and writes its
address. Without a launcher the process starts a server of its own.
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
_PATIENCE = 3  # seconds between two looks whether the run has ended


def write(path: Path, content: Dict[str, Any]) -> None:
    """Write a file that appears as a whole. Of several writers the first wins."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content), encoding="utf-8")
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    part.unlink()


def read(path: Path, seconds: float) -> Dict[str, Any]:
    """Wait until the launcher has written a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise Error(f"the launcher wrote no {path.name} in {seconds:g} s")
        time.sleep(0.02)
    content: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


class Shared:
    """The server of this run. `options` are those of cnnps.Server; under a launcher the options of
    the first worker count. With a launcher's --server it is a server elsewhere: `directory` is
    None."""

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
        """None: the run has ended, without this worker."""
        end = time.monotonic() + _SECONDS
        while not self._ended():
            try:
                return connect(self.endpoint, connect_timeout=_PATIENCE, **options)
            except UnreachableError:
                if time.monotonic() > end:
                    raise
        return None

    def result(self) -> Dict[str, Any]:
        """Wait for the end of the run. Returns the last line of cnn-ps."""
        if self._own:
            return self._own.wait(_SECONDS)
        assert self._run
        return read(self._run / RESULT, _SECONDS)

    def close(self) -> None:
        if self._own:
            self._own.close()

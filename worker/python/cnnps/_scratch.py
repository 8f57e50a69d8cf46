"""Temporary directories that a forked child does not delete. tempfile.TemporaryDirectory deletes
the directory of the parent when a child exits."""
import os
import shutil
import tempfile
import weakref
from types import TracebackType
from typing import Optional, Type


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


class Scratch:
    """A temporary directory, which is deleted by cleanup(), at the end of a `with` block, with this
    object or when the interpreter exits. Only the process that made the directory deletes it."""

    def __init__(self, prefix: str = "cnnps-") -> None:
        self.name = tempfile.mkdtemp(prefix=prefix)
        self._remove = weakref.finalize(self, _remove, self.name, os.getpid())

    def cleanup(self) -> None:
        self._remove()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.cleanup()

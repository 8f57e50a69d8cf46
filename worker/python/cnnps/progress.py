"""A progress bar of the whole run, which tqdm draws. Without tqdm there is no bar."""
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Type

if TYPE_CHECKING:
    from .client import Client

_SECONDS = 1.0  # minimum time between two status requests, in seconds


class Progress:
    """A context manager that shows the bar. The caller calls update() after each lease. The bar
    requests the status of the server at most once a second."""

    def __init__(self, client: "Client", wanted: bool) -> None:
        self._client = client
        self._bar: Optional[Any] = None
        self._asked = 0.0
        if wanted:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            self._bar = tqdm(unit="sample", disable=None)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self) -> None:
        if self._bar is None or time.monotonic() < self._asked + _SECONDS:
            return
        self._asked = time.monotonic()
        status = self._client.status()
        self._bar.total = status["epochs"] * (
            status["data"]["n_train"] - self._client.info.validate)
        self._bar.n = status["images"]
        self._bar.set_postfix(epoch=status["training_epoch"], loss=status["loss"],
                              workers=status["live_workers"])

"""A connection to a cnn-ps server: leases, pulls and pushes.

A Client wraps one connection of libcnnps. Every wait releases the GIL, and Ctrl-C ends it with
KeyboardInterrupt. After that the connection ends: connect again to go on.
"""
import atexit
import ctypes
import json
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
from numpy.typing import NDArray

from . import _library as c
from ._library import lib
from .errors import BY_STATUS, AgainError, Done, Error, UsageError
from .order import order
from .progress import Progress

Vector = NDArray[np.float32]
_log = logging.getLogger("cnnps")
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_STATUS_BYTES = 1 << 16


@dataclass(frozen=True)
class Data:
    """The data set of a worker. `xxh3` is any number that all workers of the run agree on and that
    other data sets do not have. rows, cols, channels and classes are those of images, if there are
    any."""

    n_train: int
    n_test: int = 1
    xxh3: int = 0
    rows: int = 0
    cols: int = 0
    channels: int = 0
    classes: int = 0


class Info(NamedTuple):
    """The run and this worker's place in it."""

    model: str
    n_params: int
    seed: int
    batch: int
    epochs: int
    worker: int
    incarnation: int
    term: int
    mode: str
    n_push: int
    n_fetch: int
    push_sum: bool
    prefetch: bool
    local_rate: float
    momentum: float


class Stats(NamedTuple):
    """What became of the pushes of a connection, and where the time of the program went, in
    microseconds: outside of cnnps, waiting for weights, for a push and for a lease, and copies."""

    pushed: int
    acked: int
    rejected: int
    durable: int
    last_version: int
    reconnects: int
    replayed: int
    superseded: int
    compute_us: int
    weights_us: int
    push_us: int
    lease_us: int
    copy_us: int


@dataclass(frozen=True)
class Batch:
    """Consecutive batches of an epoch. `indices` are the numbers of their samples."""

    epoch: int
    first: int
    count: int
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


class Lease:
    """Work that the server grants: batches of an epoch, or test samples."""

    def __init__(self, client: "Client", raw: c.Lease) -> None:
        self._client, self._raw = client, raw
        self.is_eval: bool = raw.kind == c.EVAL
        self.epoch: int = raw.epoch
        self.first: int = raw.first
        self.count: int = raw.count
        self.exact: bool = bool(raw.exact)
        self.version: int = raw.version
        self.term: int = raw.term
        self.eval_id: int = raw.eval_id

    def batches(self) -> Iterator[Batch]:
        """The batches of a training lease, in order."""
        for b in range(self.first, self.first + self.count):
            yield self._client.batch(self.epoch, b)

    def whole(self) -> Batch:
        """All batches of a training lease as one."""
        return self._client.batch(self.epoch, self.first, self.count)

    def __repr__(self) -> str:
        kind = "eval" if self.is_eval else f"epoch {self.epoch}"
        return f"<Lease {kind}: {self.first} to {self.first + self.count - 1}>"


class _Memory:
    """Memory for the library's gradients. numpy owns it, so an array that outlives its connection
    stays valid."""

    def __init__(self) -> None:
        self.slabs: Dict[int, NDArray[np.uint8]] = {}
        self.allocate = c.Allocate(self._allocate)
        self.release = c.Release(self._release)

    def _allocate(self, size: int) -> int:
        try:
            raw = np.zeros(size + 64, np.uint8)
        except MemoryError:
            return 0
        skip = -raw.ctypes.data % 64
        slab = raw[skip:skip + size]
        self.slabs[slab.ctypes.data] = slab
        return int(slab.ctypes.data)

    def _release(self, address: int) -> None:
        self.slabs.pop(address, None)

    def vector(self, address: int, n: int) -> Vector:
        for begin, slab in self.slabs.items():
            if begin <= address < begin + slab.nbytes:
                skip = address - begin
                return slab[skip:skip + 4 * n].view(np.float32)
        raise AssertionError("a gradient outside the memory that the library was given")


def _as_vector(values: Any) -> Vector:
    """The values as flat float32, without a copy if they are that already. Torch tensors too."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array, np.float32)
    return array.reshape(-1)


def _as_target(into: Any, n: int) -> Vector:
    """Memory that receives n values: it must be used as it is."""
    array = into.detach().numpy() if hasattr(into, "detach") else into
    if (not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.size != n
            or not array.flags.c_contiguous or not array.flags.writeable):
        raise UsageError(f"`into` must be {n} writable float32 values in one piece")
    return array.reshape(-1)


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else os.fsencode(text)


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client:
    """See connect(). One thread at a time calls the library; others wait."""

    def __init__(self, server: str, *, data: Optional[Data] = None, name: Optional[str] = None,
                 key: Optional[str] = None, server_key: Optional[str] = None,
                 device: Optional[str] = None, observer: bool = False,
                 connect_timeout: float = 30, disconnect_timeout: float = 600,
                 batch_timeout: float = 60, replay_bytes: int = 0,
                 metrics: Sequence[str] = ("accuracy",), lane: str = "auto") -> None:
        self._handle = ctypes.c_void_p()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._memory = _Memory()
        self._order: Tuple[int, Optional[NDArray[np.int64]]] = (-1, None)
        self._data = data
        self.version = 0  # of the newest pull
        self.term = 0
        self.elastic = 0.0
        level = _LEVELS.index(max(
            (x for x in _LEVELS if _log.isEnabledFor(x)), key=_LEVELS.index, default=_LEVELS[0]))
        # The library calls these until close(), so they live as long as this object. The first is
        # a function of the interpreter: it sees a Ctrl-C before any Python code handles it.
        self._callbacks = (
            c.Stop(ctypes.pythonapi.PyOS_InterruptOccurred),
            c.Report(lambda _, line: _log.warning("%s", line.decode(errors="replace"))),
            c.Log(lambda _, n, line: _log.log(_LEVELS[n], "%s", line.decode(errors="replace"))))
        stop, report, log = self._callbacks
        numbers = {} if data is None else dict(vars(data))
        options = c.Options(
            size=ctypes.sizeof(c.Options), server=_bytes(server), key=_bytes(key),
            server_key=_bytes(server_key), name=_bytes(name), device=_bytes(device or "python"),
            data=c.Data(**numbers), observer=int(observer),
            connect_timeout_ms=int(connect_timeout * 1000),
            disconnect_timeout_ms=int(disconnect_timeout * 1000),
            batch_timeout_ms=int(batch_timeout * 1000), replay_bytes=replay_bytes, stop=stop,
            allocate=self._memory.allocate, release=self._memory.release, report=report, log=log,
            log_level=level, lane=c.LANES.index(lane), metrics=metric_names(metrics).encode())
        status = lib.connect(ctypes.byref(self._handle), ctypes.byref(options))
        if status:
            try:
                self._raise(status)
            finally:
                lib.close(ctypes.byref(self._handle))
        _clients.add(self)
        raw = lib.info(self._handle).contents
        self.info = Info(*(bool(getattr(raw, f)) if f in ("push_sum", "prefetch") else
                           c.MODES[raw.mode] if f == "mode" else
                           raw.model.decode() if f == "model" else getattr(raw, f)
                           for f in Info._fields))

    # ---- calls -----------------------------------------------------------------------------------

    def _raise(self, status: int) -> None:
        text = (lib.error(self._handle) or lib.strerror(status)).decode(errors="replace")
        if text == "the program ended this wait":
            raise KeyboardInterrupt
        error = BY_STATUS.get(status, Error)(text)
        error.status = status
        raise error

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError("this connection belongs to the parent process: connect again")
        if not self._handle:
            raise UsageError("this connection is closed")

    def _call(self, name: str, *arguments: Any) -> None:
        with self._lock:
            self._check()
            status = getattr(lib, name)(self._handle, *arguments)
            if status:
                self._raise(status)

    def close(self) -> None:
        """Wait up to 5 s for decisions, say goodbye and free the connection. In a child process of
        the one that connected, only forget it."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._handle:
                lib.close(ctypes.byref(self._handle))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> bool:
        """The end of training ends the block, whichever call meets it."""
        self.close()
        return kind is not None and issubclass(kind, Done)

    def __reduce__(self) -> Any:
        raise TypeError("a connection cannot be sent to another process: connect there")

    # ---- training --------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """Wait for work. Returns the unfinished part of the previous lease. Raises Done at the end
        of training."""
        raw = c.Lease(size=ctypes.sizeof(c.Lease))
        self._call("lease", ctypes.byref(raw))
        return Lease(self, raw)

    def leases(self, progress: bool = False) -> Iterator[Lease]:
        """Leases until training is done: each sample is in exactly one batch per epoch that counts,
        whatever crashes. The caller pushes the batches of training leases, and answers each
        evaluation lease with result(). progress: show a bar of the whole run with tqdm."""
        with Progress(self, progress) as bar:
            while True:
                try:
                    lease = self.lease()
                except Done:
                    return
                yield lease
                bar.update()

    def batch(self, epoch: int, first: int, count: int = 1) -> Batch:
        """Batches of an epoch, with the numbers of their samples."""
        if self._data is None:
            raise UsageError("connect(..., data=cnnps.Data(...)) tells the number of samples")
        size, n = self.info.batch, self._data.n_train
        if self._order[0] != epoch or self._order[1] is None:
            self._order = (epoch, order(self.info.seed, epoch, n))
        begin, end = first * size, min((first + count) * size, n)
        return Batch(epoch, first, count, self._order[1][begin:end])  # type: ignore[index]

    def _pull(self, flags: int, target: Optional[Vector]) -> c.Pull:
        raw = c.Pull(size=ctypes.sizeof(c.Pull), flags=flags,
                     into=None if target is None else target.ctypes.data)
        self._call("pull", ctypes.byref(raw))
        return raw

    def _pulled(self, raw: c.Pull) -> None:
        self.version, self.term, self.elastic = raw.version, raw.term, raw.elastic

    def pull(self, into: Any = None) -> Vector:
        """The newest weights. `into`: n_params float32 values of numpy or torch (CPU) that receive
        them; None: a new array."""
        target = self._target(into)
        self._pulled(self._pull(0, target))
        return target

    def start_pull(self) -> None:
        """Start the transfer of the newest weights, which the next pull() returns."""
        self._pull(c.PULL_START, None)

    def pull_eval(self, into: Any = None) -> Vector:
        """The weights that an evaluation lease evaluates. Raises AgainError if other workers have
        completed this evaluation: go on with the next lease."""
        target = self._target(into)
        self._pull(c.PULL_EVAL, target)
        return target

    def _target(self, into: Any) -> Vector:
        n = self.info.n_params
        return np.empty(n, np.float32) if into is None else _as_target(into, n)

    def gradient(self) -> Vector:
        """A buffer of n_params values for the next gradient. push() sends it without a copy and
        owns it from then on: call gradient() again for the next one. It contains zeros or an
        earlier gradient."""
        with self._lock:
            self._check()
            address = lib.gradient(self._handle)
            if not address:
                raise MemoryError("no memory for a gradient")
            return self._memory.vector(address, self.info.n_params)

    def push(self, gradient: Any, batch: Optional[Batch] = None, loss: float = 0.0, *,
             version: Optional[int] = None, offset: int = 0, then: Any = None) -> None:
        """Push a gradient: float32 values of numpy or torch, all n_params, or fewer from `offset`
        on. batch: the batches that it covers, with `loss` as the mean over their samples. version:
        of the weights at which it was computed; None: those of the newest pull. then: as pull(then)
        after the push, in the same round trip."""
        values = _as_vector(gradient)
        target = None if then is None else self._target(then)
        raw = c.Push(size=ctypes.sizeof(c.Push), gradient=values.ctypes.data, offset=offset,
                     count=values.size, version=self.version if version is None else version)
        if batch is not None:
            raw.work = c.Work(batch.epoch, batch.first, batch.count, len(batch), loss)
        if target is None:
            self._call("push", ctypes.byref(raw))
            return
        pull = c.Pull(size=ctypes.sizeof(c.Pull), into=target.ctypes.data)
        raw.then = ctypes.pointer(pull)
        self._call("push", ctypes.byref(raw))
        self._pulled(pull)

    def result(self, lease: Lease, correct: int, loss_sum: float,
               metric_sums: Sequence[float] = ()) -> None:
        """Answer an evaluation lease: correct answers, the sum of the losses of its samples, and
        the sums of the metrics besides accuracy, in the order of `metrics`."""
        raw = c.Evaluation(size=ctypes.sizeof(c.Evaluation), correct=correct, loss_sum=loss_sum)
        raw.metric_sum[:len(metric_sums)] = metric_sums
        self._call("result", ctypes.byref(lease._raw), ctypes.byref(raw))

    def flush(self, durable: bool = True, timeout: float = 60) -> bool:
        """Wait until every push is decided (durable: and on the server's disk). False: not all are
        after `timeout` seconds."""
        try:
            self._call("flush", int(durable), int(timeout * 1000))
        except AgainError:
            return False
        return True

    # ---- observing -------------------------------------------------------------------------------

    def alive(self) -> None:
        """Report progress, if other calls may be more than batch_timeout apart. Any thread."""
        self._check()
        lib.alive(self._handle)

    def stats(self) -> Stats:
        """Counters since the connection was made. Any thread."""
        self._check()
        raw = c.Stats(size=ctypes.sizeof(c.Stats))
        lib.stats(self._handle, ctypes.byref(raw))
        return Stats(*(getattr(raw, f) for f in Stats._fields))

    def status(self) -> Dict[str, Any]:
        """The server's status."""
        text = ctypes.create_string_buffer(_STATUS_BYTES)
        self._call("status", text, _STATUS_BYTES)
        found: Dict[str, Any] = json.loads(text.value)
        return found

    def checkpoint(self) -> int:
        """Make the server write a checkpoint. Returns its generation."""
        generation = ctypes.c_uint64()
        self._call("checkpoint", ctypes.byref(generation))
        return generation.value

    def drain(self) -> None:
        """Make the server write a last checkpoint and exit."""
        self._call("drain")


@atexit.register
def _close_all() -> None:
    """The library's threads call Python code, so they end before the interpreter does."""
    clients: List[Client] = list(_clients)
    for client in clients:
        client.close()


def metric_names(metrics: Sequence[str]) -> str:
    """The value of --metrics."""
    return ",".join(metrics) or "none"


def connect(server: str = "", **options: Any) -> Client:
    """Connect to a cnn-ps as a worker, and wait until it accepts. A context manager.

    server: "tcp://127.0.0.1:5555"; empty: the one of $CNN_SERVER, which cnnps.run sets, else the
    default address. The other options are those of Client: data (a Data, for a run with epochs),
    name (a worker with the same name gets the same slot again), key and server_key (files of
    cnn-ctl keygen), observer=True (only pulls and status), metrics (what an evaluation reports
    besides the loss, as --metrics of the server), lane ("auto", "tcp" or "shm", as --lane of
    cnn-worker), and times in seconds.
    """
    server = server or os.environ.get("CNN_SERVER", "tcp://127.0.0.1:5555")
    for name in ("key", "server_key"):
        options[name] = options.get(name) or os.environ.get(f"CNN_{name.upper()}") or None
    return Client(server, **options)

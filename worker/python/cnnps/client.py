"""A connection to a cnn-ps server: leases, pulls and pushes.

A Client wraps one connection of libcnnps. Every wait releases the GIL, and Ctrl-C ends the wait
with KeyboardInterrupt. After a KeyboardInterrupt the connection cannot be used: connect again to
continue.
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
    """The data set of a worker. `xxh3` is a fingerprint: a number that is equal in all workers of
    the run and different for different data sets. rows, cols, channels and classes describe images;
    they are 0 for other samples."""

    n_train: int
    n_test: int = 1
    xxh3: int = 0
    rows: int = 0
    cols: int = 0
    channels: int = 0
    classes: int = 0


class Info(NamedTuple):
    """The options of the run, and the worker slot of this process."""

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

    @property
    def n_trained(self) -> int:
        """The number of parameters without the running statistics, which are the last S parameters
        of `vector:N:running=S`."""
        return self.n_params - int(self.model.partition(":running=")[2] or 0)


class Stats(NamedTuple):
    """Counters of the pushes of a connection, and the time of the program in microseconds: outside
    of cnnps (compute_us), waiting for weights, pushes and leases (weights_us, push_us, lease_us),
    and in checksums and copies (copy_us)."""

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
    """One batch or several consecutive batches of an epoch. `indices` are the numbers of the
    samples."""

    epoch: int
    first: int
    count: int
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


class Lease:
    """Work that the server grants: `count` batches of an epoch from batch `first` on, or `count`
    test samples from sample `first` on."""

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
        """Yields the batches of a training lease, in order."""
        for b in range(self.first, self.first + self.count):
            yield self._client.batch(self.epoch, b)

    def whole(self) -> Batch:
        """Returns all batches of a training lease as one Batch."""
        return self._client.batch(self.epoch, self.first, self.count)

    def __repr__(self) -> str:
        kind = "eval" if self.is_eval else f"epoch {self.epoch}"
        return f"<Lease {kind}: {self.first} to {self.first + self.count - 1}>"


class _Memory:
    """Memory for the gradients of libcnnps. numpy owns the memory, so an array that outlives its
    connection stays valid."""

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
    """Returns the values of an array or a torch tensor as a flat float32 array. Copies them only if
    they are not contiguous float32 values in CPU memory."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array, np.float32)
    return array.reshape(-1)


def _as_target(into: Any, n: int) -> Vector:
    """Returns `into` as a flat array of n values that shares its memory. Raises UsageError if
    `into` cannot receive n values without a copy."""
    array = into.detach().numpy() if hasattr(into, "detach") else into
    if (not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.size != n
            or not array.flags.c_contiguous or not array.flags.writeable):
        raise UsageError(f"`into` must be {n} writable float32 values in one piece")
    return array.reshape(-1)


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else os.fsencode(text)


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client:
    """A connection to a server, made by connect(). Several threads may use a Client; a call waits
    while the call of another thread runs."""

    def __init__(self, server: str, *, data: Optional[Data] = None, name: Optional[str] = None,
                 key: Optional[str] = None, server_key: Optional[str] = None,
                 device: Optional[str] = None, observer: bool = False,
                 connect_timeout: float = 30, disconnect_timeout: float = 600,
                 batch_timeout: float = 60, replay_bytes: int = 0,
                 metrics: Sequence[str] = ("accuracy",), lane: str = "auto",
                 tensors: str = "") -> None:
        self._handle = ctypes.c_void_p()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._memory = _Memory()
        self._order: Tuple[int, Optional[NDArray[np.int64]]] = (-1, None)
        self._data = data
        self.version = 0  # version, term and elastic have the values of the newest pull
        self.term = 0
        self.elastic = 0.0
        level = _LEVELS.index(max(
            (x for x in _LEVELS if _log.isEnabledFor(x)), key=_LEVELS.index, default=_LEVELS[0]))
        # The library calls these functions until close(), so this object keeps them alive. The
        # first is a C function of the interpreter, which detects Ctrl-C while no Python code runs.
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
            log_level=level, lane=c.LANES.index(lane), metrics=metric_names(metrics).encode(),
            tensors=tensors.encode())
        status = lib.connect(ctypes.byref(self._handle), ctypes.byref(options))
        if status:
            try:
                self._raise(status)
            finally:
                lib.close(ctypes.byref(self._handle))
        _clients.add(self)
        raw = lib.info(self._handle).contents
        self.info = Info._make(
            bool(getattr(raw, f)) if f in ("push_sum", "prefetch") else
            c.MODES[raw.mode] if f == "mode" else
            raw.model.decode() if f == "model" else getattr(raw, f)
            for f in Info._fields)

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
        """Waits up to 5 s for the server's decisions on pushes, leaves the run and frees the
        connection. Does nothing in a forked child of the process that connected."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._handle:
                lib.close(ctypes.byref(self._handle))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> bool:
        """Closes the connection. If any call in the `with` block raises Done, the block ends
        without an error."""
        self.close()
        return kind is not None and issubclass(kind, Done)

    def __reduce__(self) -> Any:
        raise TypeError("a connection cannot be sent to another process: connect there")

    # ---- training --------------------------------------------------------------------------------

    def lease(self) -> Lease:
        """Waits for work, and gives the unfinished part of the previous lease back to the server.
        Returns the new lease. Raises Done at the end of training."""
        raw = c.Lease(size=ctypes.sizeof(c.Lease))
        self._call("lease", ctypes.byref(raw))
        return Lease(self, raw)

    def leases(self, progress: bool = False) -> Iterator[Lease]:
        """Yields leases until training is done. The caller pushes the batches of each training
        lease, and answers each evaluation lease with result(). If it does so, each sample counts
        exactly once per epoch, whatever crashes. progress: show a progress bar of the run with
        tqdm."""
        with Progress(self, progress) as bar:
            while True:
                try:
                    lease = self.lease()
                except Done:
                    return
                yield lease
                bar.update()

    def batch(self, epoch: int, first: int, count: int = 1) -> Batch:
        """Returns `count` batches of an epoch from batch `first` on, with the numbers of their
        samples."""
        if self._data is None:
            raise UsageError("unknown number of samples: call connect(..., data=cnnps.Data(...))")
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
        """Returns the newest weights in the memory of `into`, a numpy array or torch CPU tensor of
        n_params float32 values. If `into` is None, returns them in a new array."""
        target = self._target(into)
        self._pulled(self._pull(0, target))
        return target

    def start_pull(self) -> None:
        """Starts the transfer of the newest weights, which the next pull() returns."""
        self._pull(c.PULL_START, None)

    def pull_eval(self, into: Any = None) -> Vector:
        """Returns the weights that the current evaluation lease evaluates, in the same way as
        pull(). Raises AgainError if other workers have completed this evaluation: then continue
        with the next lease."""
        target = self._target(into)
        self._pull(c.PULL_EVAL, target)
        return target

    def _target(self, into: Any) -> Vector:
        n = self.info.n_params
        return np.empty(n, np.float32) if into is None else _as_target(into, n)

    def gradient(self) -> Vector:
        """Returns a buffer of n_params values for the next gradient. The buffer contains zeros or
        an earlier gradient. push() sends the buffer without a copy and takes it over, so call
        gradient() again for the next push."""
        with self._lock:
            self._check()
            address = lib.gradient(self._handle)
            if not address:
                raise MemoryError("no memory for a gradient")
            return self._memory.vector(address, self.info.n_params)

    def push(self, gradient: Any, batch: Optional[Batch] = None, loss: float = 0.0, *,
             version: Optional[int] = None, offset: int = 0, then: Any = None) -> None:
        """Pushes a gradient: a numpy array or torch tensor of n_params values, or fewer for the
        parameters from `offset` on. batch: the batches of the gradient. loss: the mean loss over
        the samples of these batches. version: the version of the weights at which the gradient was
        computed; None: the version of the newest pull. then: an array for the newest weights, which
        the server sends in its answer to the push; None: do not pull."""
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
        """Answers an evaluation lease with sums over its samples: the number of correct answers,
        the sum of the losses, and the sums of all metrics except accuracy, in the order of the
        option `metrics` of connect()."""
        raw = c.Evaluation(size=ctypes.sizeof(c.Evaluation), correct=correct, loss_sum=loss_sum)
        raw.metric_sum[:len(metric_sums)] = metric_sums
        self._call("result", ctypes.byref(lease._raw), ctypes.byref(raw))

    def flush(self, durable: bool = True, timeout: float = 60) -> bool:
        """Waits until the server has decided on every push and, if `durable` is true, has stored it
        on disk. Returns False if this takes more than `timeout` seconds."""
        try:
            self._call("flush", int(durable), int(timeout * 1000))
        except AgainError:
            return False
        return True

    # ---- observing -------------------------------------------------------------------------------

    def alive(self) -> None:
        """Reports that the program makes progress. The program needs this call only if it may make
        no other call for longer than batch_timeout. Any thread may call it."""
        self._check()
        lib.alive(self._handle)

    def stats(self) -> Stats:
        """Returns the counters since the connection was made. Any thread may call it."""
        self._check()
        raw = c.Stats(size=ctypes.sizeof(c.Stats))
        lib.stats(self._handle, ctypes.byref(raw))
        return Stats(*(getattr(raw, f) for f in Stats._fields))

    def status(self) -> Dict[str, Any]:
        """Returns the status of the server, with the fields of `cnn-ctl status`."""
        text = ctypes.create_string_buffer(_STATUS_BYTES)
        self._call("status", text, _STATUS_BYTES)
        found: Dict[str, Any] = json.loads(text.value)
        return found

    def checkpoint(self) -> int:
        """Makes the server write a checkpoint. Returns the generation of the checkpoint."""
        generation = ctypes.c_uint64()
        self._call("checkpoint", ctypes.byref(generation))
        return generation.value

    def drain(self) -> None:
        """Makes the server write a last checkpoint and exit."""
        self._call("drain")


@atexit.register
def _close_all() -> None:
    """Closes all connections when the interpreter exits. The threads of libcnnps call Python code,
    so they must end before the interpreter."""
    clients: List[Client] = list(_clients)
    for client in clients:
        client.close()


def metric_names(metrics: Sequence[str]) -> str:
    """Returns the names of the metrics in the format of --metrics."""
    return ",".join(metrics) or "none"


def connect(server: str = "", **options: Any) -> Client:
    """Connects to a cnn-ps server as a worker, and waits until the server accepts it. The Client is
    a context manager.

    server: the address of the server; empty: $CNN_SERVER, which `cnnps.run --server` sets, else
    "tcp://127.0.0.1:5555". The other options are those of Client: data (a Data, for a run with
    epochs), name (a worker with the same name gets the same slot again), key and server_key (files
    from cnn-ctl keygen), observer=True (only pulls and status), metrics (the names of --metrics of
    the server), lane ("auto", "tcp" or "shm", like --lane of cnn-worker), tensors (the result of
    cnnps.torch.tensor_list), and timeouts in seconds.
    """
    server = server or os.environ.get("CNN_SERVER", "tcp://127.0.0.1:5555")
    for name in ("key", "server_key"):
        options[name] = options.get(name) or os.environ.get(f"CNN_{name.upper()}") or None
    return Client(server, **options)

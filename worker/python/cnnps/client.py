"""A connection to a cnn-ps server: leases, pulls and pushes.

A Client wraps one connection of libcnnps. Every wait releases the GIL. Handlers of signals run
during a wait, and Ctrl-C ends the wait with KeyboardInterrupt. After an exception of a handler the
connection cannot be used: connect again to continue.
"""
import contextlib
import ctypes
import json
import math
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
from numpy.typing import NDArray

from . import _arguments as check
from . import _library as c
from ._connection import Connection
from ._library import lib
from .errors import AgainError, Done, OutOfMemoryError, ProtocolError, UsageError
from .order import held_back, order
from .progress import Progress

Vector = NDArray[np.float32]
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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            bits = 64 if name == "xxh3" else 32
            object.__setattr__(self, name, check.whole(f"Data: {name}", value, bits))


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
    validate: int

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
    test samples from sample `first` on. In a run with --validate, the test samples are
    `client.held_back`."""

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


def _as_vector(values: Any) -> Vector:
    """Returns the values of an array or a torch tensor as a flat float32 array. Copies them only if
    they are not contiguous float32 values in CPU memory."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"gradient: expected an array of numbers, not {type(values).__name__} "
                        f"({array.dtype})")
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array, np.float32)
    if not array.size:
        raise UsageError("gradient: an array without values")
    return array.reshape(-1)


def _as_target(into: Any, n: int) -> Vector:
    """Returns `into` as a flat array of n values that shares its memory. Raises UsageError if
    `into` cannot receive n values without a copy."""
    array = into.detach().numpy() if hasattr(into, "detach") else into
    if (not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.size != n
            or not array.flags.c_contiguous or not array.flags.writeable):
        raise UsageError(f"`into` must be {n} writable float32 values in one piece")
    return array.reshape(-1)


class Client:
    """A connection to a server, made by connect(). Several threads may use a Client; a call waits
    while the call of another thread runs."""

    def __init__(self, server: str, *, data: Optional[Data] = None, name: Optional[str] = None,
                 key: Optional[str] = None, server_key: Optional[str] = None,
                 device: Optional[str] = None, observer: bool = False,
                 connect_timeout: float = 30, disconnect_timeout: float = 600,
                 batch_timeout: float = 60, replay_bytes: int = 0,
                 metrics: Sequence[str] = ("accuracy",), lane: str = "auto",
                 tensors: str = "", wire: str = "fp32", validates: bool = False,
                 connections: int = 1) -> None:
        if lane not in c.LANES:
            raise UsageError(f"lane={lane!r}: expected {', '.join(c.LANES)}")
        if wire not in c.WIRES:
            raise UsageError(f"wire={wire!r}: expected {', '.join(c.WIRES)}")
        self._order: Tuple[int, Optional[NDArray[np.int64]]] = (-1, None)
        self._data = None if data is None else check.instance("data", data, Data)
        self.version = 0  # `version`, `term` and `elastic` are those of the newest pull
        self.term = 0
        self.elastic = 0.0
        # number of metrics except accuracy, which is the number of sums that result() takes
        self.n_sums = len(set(check.names("metrics", metrics)) - {"accuracy", "none"})
        numbers = {} if data is None else dict(vars(data))
        self._connection = Connection({
            "server": check.text("server", server), "key": check.text("key", key),
            "server_key": check.text("server_key", server_key), "name": check.text("name", name),
            "device": check.text("device", device or "python"), "data": c.Data(**numbers),
            "observer": int(bool(observer)),
            "connect_timeout_ms": check.milliseconds("connect_timeout", connect_timeout),
            "disconnect_timeout_ms": check.milliseconds("disconnect_timeout", disconnect_timeout),
            "batch_timeout_ms": check.milliseconds("batch_timeout", batch_timeout),
            "replay_bytes": check.whole("replay_bytes", replay_bytes, 64),
            "lane": c.LANES.index(lane), "metrics": check.text("metrics", metric_names(metrics)),
            "tensors": check.text("tensors", tensors), "wire": c.WIRES.index(wire),
            "validates": int(bool(validates)),
            "connections": check.whole("connections", connections, 64)})
        # the numbers of the training samples that are held back (--validate), and of the others
        self.held_back: NDArray[np.int64] = held_back(0, 0)
        self._kept: Optional[NDArray[np.int64]] = None
        raw = lib.info(self._connection.handle).contents
        self.info = Info._make(
            bool(getattr(raw, f)) if f in ("push_sum", "prefetch") else
            c.MODES[raw.mode] if f == "mode" else
            raw.model.decode() if f == "model" else getattr(raw, f)
            for f in Info._fields)
        if self.info.validate and self._data is not None and self._data.n_train:
            n = self._data.n_train
            self.held_back = held_back(n, self.info.validate)
            self._kept = np.delete(np.arange(n, dtype=np.int64), self.held_back)

    # ---- calls -----------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._connection.call(name, *arguments)

    def close(self) -> None:
        """Waits up to 5 s until the server has accepted or rejected all pushes, then leaves the run
        and frees the connection. Pushes that the server has not received after these 5 s are lost;
        to wait for longer, call flush() before close(). A waiting call of another thread ends with
        UsageError. Does nothing in a forked child of the process that connected."""
        self._connection.close()

    def __del__(self) -> None:
        # AttributeError: __init__ failed before it set _connection
        with contextlib.suppress(AttributeError):
            if self._connection.handle:
                self._connection.abandon()

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
        lease, and answers each evaluation lease with result(). If the caller does so, each sample
        counts exactly once per epoch, whatever crashes. progress: show a progress bar of the run
        with tqdm."""
        with Progress(self, progress) as bar:
            while True:
                try:
                    lease = self.lease()
                except Done:
                    return
                yield lease
                try:
                    bar.update()
                except Done:  # the run has ended before the progress bar requested the status
                    return

    def batch(self, epoch: int, first: int, count: int = 1) -> Batch:
        """Returns `count` batches of an epoch from batch `first` on, with the numbers of their
        samples."""
        if self._data is None:
            raise UsageError("unknown number of samples: call connect(..., data=cnnps.Data(...))")
        size, n = self.info.batch, self._data.n_train - len(self.held_back)
        batches = -(-n // size)
        epoch, first = check.whole("epoch", epoch), check.whole("first", first)
        if check.whole("count", count, minimum=1) > batches - first:
            raise UsageError(f"batches {first} to {first + count - 1}: an epoch has {batches}")
        if self._order[0] != epoch or self._order[1] is None:
            samples = order(self.info.seed, epoch, n)
            self._order = (epoch, samples if self._kept is None else self._kept[samples])
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
        address = self._call("gradient")
        if not address:
            raise OutOfMemoryError("no memory for a gradient")
        return self._connection.memory.vector(address, self.info.n_params)

    def push(self, gradient: Any, batch: Optional[Batch] = None, loss: float = 0.0, *,
             version: Optional[int] = None, offset: int = 0, then: Any = None) -> None:
        """Pushes a gradient: a numpy array or torch tensor of n_params values, or fewer for the
        parameters from `offset` on. batch: the batches of the gradient, from a lease; a run with
        epochs needs them, and a run without epochs has none. loss: the mean loss over the samples
        of these batches. version: the version of the weights at which the gradient was computed;
        None: the version of the newest pull. then: an array for the newest weights, which the
        server sends in its answer to the push; None: do not pull."""
        values = _as_vector(gradient)
        target = None if then is None else self._target(then)
        raw = c.Push(size=ctypes.sizeof(c.Push), gradient=values.ctypes.data,
                     offset=check.whole("offset", offset, 64), count=values.size,
                     version=check.whole("version", self.version if version is None else version,
                                         64))
        loss = check.number("loss", loss)
        if batch is None and self.info.epochs:
            raise UsageError(f"batch is missing: the run has a data set (epochs={self.info.epochs})"
                             ", so pass the batch of the gradient, such as one of lease.batches()")
        if batch is not None:
            check.instance("batch", batch, Batch)
            raw.work = c.Work(check.whole("epoch", batch.epoch), check.whole("first", batch.first),
                              check.whole("count", batch.count), len(batch), loss)
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
        check.instance("lease", lease, Lease)
        raw = c.Evaluation(size=ctypes.sizeof(c.Evaluation),
                           correct=check.whole("correct", correct),
                           loss_sum=check.number("loss_sum", loss_sum))
        sums = [check.number("metric_sums", value) for value in metric_sums]
        if len(sums) != self.n_sums:
            raise UsageError(f"metric_sums: {len(sums)} values, but the option `metrics` of "
                             f"connect() has {self.n_sums} names besides accuracy")
        # if the loss is not finite, the server reports that training has diverged
        if math.isfinite(raw.loss_sum):
            for value in sums:
                if not math.isfinite(value):
                    raise UsageError(f"metric_sums: {value}: expected finite numbers")
        raw.metric_sum[:len(sums)] = sums
        self._call("result", ctypes.byref(lease._raw), ctypes.byref(raw))

    def flush(self, durable: bool = True, timeout: float = 60) -> bool:
        """Waits until the server has accepted or rejected every push and, if `durable` is true, has
        stored the accepted pushes on disk. Returns False if this takes more than `timeout`
        seconds."""
        try:
            self._call("flush", int(bool(durable)), check.milliseconds("timeout", timeout, 0))
        except AgainError:
            return False
        return True

    # ---- observing -------------------------------------------------------------------------------

    def alive(self) -> None:
        """Reports that the program makes progress. The program needs this call only if it may make
        no other call for longer than batch_timeout. Any thread may make this call."""
        self._connection.call_now("alive")

    def stats(self) -> Stats:
        """Returns the counters since the connection was made. Any thread may make this call."""
        raw = c.Stats(size=ctypes.sizeof(c.Stats))
        self._connection.call_now("stats", ctypes.byref(raw))
        return Stats(*(getattr(raw, f) for f in Stats._fields))

    def status(self) -> Dict[str, Any]:
        """Returns the status of the server, with the fields of `cnn-ctl status`. If the status of
        all workers does not fit into one message of 60 KiB, the list `workers` lacks some workers,
        and `workers_left_out` is the number of these."""
        text = ctypes.create_string_buffer(_STATUS_BYTES)
        self._call("status", text, _STATUS_BYTES)
        try:
            found: Dict[str, Any] = json.loads(text.value)
        except ValueError as why:
            raise ProtocolError(f"the status of the server is no JSON: {why}") from None
        return found

    def checkpoint(self) -> int:
        """Makes the server write a checkpoint. Returns the generation of the checkpoint."""
        generation = ctypes.c_uint64()
        self._call("checkpoint", ctypes.byref(generation))
        return generation.value

    def drain(self) -> None:
        """Makes the server write a last checkpoint and exit."""
        self._call("drain")

    def log_level(self, level: str) -> None:
        """Sets the log level of the server until its next start: "error", "warn", "info" or
        "debug"."""
        self._call("log_level", check.text("level", level))

    def release(self, worker: str) -> None:
        """Ends the quarantine of a worker. worker: its name or key as in status(), or at least the
        first 8 characters of the key. Raises UsageError if no such worker is in quarantine."""
        self._call("release", check.text("worker", worker))


def metric_names(metrics: Sequence[str]) -> str:
    """Returns the names of the metrics in the format of --metrics."""
    return ",".join(check.names("metrics", metrics)) or "none"


def connect(server: str = "", **options: Any) -> Client:
    """Connects to a cnn-ps server as a worker or, with observer=True, as an observer, and waits
    until the server accepts it. The Client is a context manager.

    server: the address of the server; empty: the value of $CNN_SERVER, which `cnnps.run --server`
    sets, or "tcp://127.0.0.1:5555" without this variable. The other options are those of Client.
    data: a Data, for a run with epochs. name: a worker with the same name gets the same slot again.
    key and server_key: files from cnn-ctl keygen; None: $CNN_KEY and $CNN_SERVER_KEY, if they are
    set; "": no key. observer=True: the Client can only pull, and make the calls that observe and
    operate the server. metrics: the names of --metrics of the server. lane: "auto", "tcp" or "shm",
    like --lane of cnn-worker. wire: "fp32" or "bf16", like --wire of cnn-worker. connections: like
    --connections of cnn-worker. tensors: the result of cnnps.torch.tensor_list. validates=True:
    this program supports runs with --validate, in which it evaluates the training samples
    client.held_back instead of test samples. All timeouts are in seconds.
    """
    server = server or os.environ.get("CNN_SERVER", "tcp://127.0.0.1:5555")
    for name in ("key", "server_key"):
        if options.get(name) is None:
            options[name] = os.environ.get(f"CNN_{name.upper()}")
        options[name] = options[name] or None
    return Client(server, **options)

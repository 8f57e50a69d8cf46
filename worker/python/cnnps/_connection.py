"""The connection of a Client, and the rules for what may interrupt a call of libcnnps.

libcnnps calls functions of this module from its waits and from its own threads. Signals, log
handlers and the garbage collector can run any Python code there, so:

* An exception never leaves a callback, because ctypes would print and discard it. This module keeps
  the exception, and raises it when the call of the library returns. If that call is waiting, the
  callback `stop` first ends the wait.
* Handlers of signals run during a wait. They cannot use the connection that waits. A log handler
  cannot call the library at all, because the library has locked its log.
* A finalizer takes no lock and does not wait: it gives its connection to a thread that closes it.
* A forked child neither uses nor closes the connections of its parent.
"""
import atexit
import contextlib
import ctypes
import functools
import logging
import os
import queue
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Set

import numpy as np
from numpy.typing import NDArray

from . import _library as c
from ._library import lib
from .errors import BY_STATUS, Error, ShutdownError, UsageError

_log = logging.getLogger("cnnps")
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
# the text of libcnnps's error after `stop` has ended a wait
_STOPPED = "the program ended this wait"
# at the interpreter's end: maximum wait, in seconds, for the threads that close connections
_SECONDS = 20


class _Thread(threading.local):
    def __init__(self) -> None:
        # a list for each running call, oldest first, of the exceptions in its callbacks
        self.calls: List[List[BaseException]] = []
        self.logging = 0  # 1: the library waits for a log handler on this thread


_thread = _Thread()


# ---- callbacks ----------------------------------------------------------------------------------

def _note(why: BaseException) -> int:
    """Keeps an exception until the call of the library returns. In a callback on a thread of the
    library, no call of the program could raise the exception, so it is printed."""
    if _thread.calls:
        _thread.calls[-1].append(why)
    else:
        traceback.print_exception(type(why), why, why.__traceback__)
    return 1


def _guard(work: Callable[[Any], int]) -> Callable[[Any], int]:
    """Returns a function that calls work() and never raises.

    A Python function would run the handlers of pending signals before its first line, outside of
    any `try`. A generator continues inside of its `try`, and its method send() is written in C, so
    no handler can run between them. The library makes the calls of one guard one after another,
    under a lock.
    """
    def loop() -> Any:
        result = 0
        while True:
            try:
                while True:
                    result = work((yield result))
            except GeneratorExit:
                return
            except BaseException as why:  # pylint: disable=broad-except
                result = _note(why)
    generator = loop()
    next(generator)
    return generator.send  # type: ignore[no-any-return]


def _each(work: Callable[[Any], int]) -> Callable[..., Any]:
    """Returns a function that calls a guard of `work` with each of its arguments. The function is
    the built-in max(), because a Python function could raise (_guard)."""
    return functools.partial(max, key=_guard(work))


def _log_writer(write: Callable[[int, str], None]) -> Callable[[Any], int]:
    """Returns a function that _each() calls once for each argument of the library's log callback:
    with None, then with the level if there is one, then with the line."""
    level = 0

    def receive(value: Any) -> int:
        nonlocal level
        if isinstance(value, int):
            level = value
        elif value is not None:
            _thread.logging += 1
            try:
                write(level, value.decode(errors="replace"))
            finally:
                _thread.logging -= 1
        return 0
    return receive


def _new_log() -> Any:
    return c.Log(_each(_log_writer(lambda level, line: _log.log(_LEVELS[level], "%s", line))))


_log_line = _new_log()  # the library has one log, which outlives each connection


def _log_level() -> int:
    return max((i for i, level in enumerate(_LEVELS) if _log.isEnabledFor(level)), default=0)


class _Memory:
    """Memory for the gradients of libcnnps. numpy owns the memory, so an array that outlives its
    connection stays valid."""

    def __init__(self) -> None:
        self.slabs: Dict[int, NDArray[np.uint8]] = {}
        self.allocate = c.Allocate(self._allocate)
        self.release = c.Release(self.slabs.pop)

    def _allocate(self, size: int) -> int:
        try:
            raw = np.zeros(size + 64, np.uint8)
        except MemoryError:
            return 0
        skip = -raw.ctypes.data % 64
        slab = raw[skip:skip + size]
        self.slabs[slab.ctypes.data] = slab
        return int(slab.ctypes.data)

    def vector(self, address: int, n: int) -> NDArray[np.float32]:
        for begin, slab in list(self.slabs.items()):
            if begin <= address < begin + slab.nbytes:
                skip = address - begin
                return slab[skip:skip + 4 * n].view(np.float32)
        raise AssertionError("a gradient outside the memory that the library was given")


# ---- connections --------------------------------------------------------------------------------

class Connection:
    """A connection of libcnnps. It stays open if its Client is dropped without close()."""

    def __init__(self, options: Dict[str, Any]) -> None:
        self.handle = ctypes.c_void_p()
        self.pid = os.getpid()
        self.memory = _Memory()
        self._lock = threading.RLock()
        # held during a call that never waits, and when _free() sets `_closing`
        self._brief = threading.RLock()
        self._is_busy = False  # true while a call of the library that holds `_lock` runs
        self._closing = False  # true: close() waits for the call of another thread to end
        # the library calls these functions until cnnps_close()
        self._stop = c.Stop(_guard(self._check_signals))
        self._report = c.Report(_each(_log_writer(lambda _, line: _log.warning("%s", line))))
        raw = c.Options(size=ctypes.sizeof(c.Options), stop=self._stop, report=self._report,
                        allocate=self.memory.allocate, release=self.memory.release, log=_log_line,
                        log_level=_log_level(), **options)
        _start()
        _open.add(self)
        try:
            self._run(lib.connect, ctypes.byref(self.handle), ctypes.byref(raw))
        except BaseException:
            self.close()
            raise

    def _check_signals(self, _: object) -> int:
        """Runs the handlers of pending signals. Returns 1 if the wait must end."""
        ctypes.pythonapi.PyErr_CheckSignals()  # raises what a handler raises
        return int(self._closing or bool(_thread.calls and _thread.calls[-1]))

    def _raise(self, status: int) -> None:
        text = (lib.error(self.handle) or lib.strerror(status)).decode(errors="replace")
        if text == _STOPPED and self._closing:
            raise UsageError("this connection is closed")
        if text == _STOPPED:
            raise ShutdownError("an exception has ended a wait of this connection: connect again")
        error = BY_STATUS.get(status, Error)(text)
        error.status = status
        raise error

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the library. Raises the first exception of a callback of this call or, if there is
        none, the error of the library."""
        check_thread()
        raised: List[BaseException] = []
        calls = _thread.calls
        depth = len(calls)
        try:
            calls.append(raised)
            result = function(*arguments)
        finally:
            del calls[depth:]
        if raised:
            raise raised[0]
        if function.restype is ctypes.c_int and result:  # type: ignore[attr-defined]
            self._raise(result)
        return result

    def check(self) -> None:
        if os.getpid() != self.pid:
            raise UsageError("this connection belongs to the parent process: connect again")
        if not self.handle or self._closing:
            raise UsageError("this connection is closed")

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library, after the running call of another thread has ended."""
        self.check()
        with self._lock:
            self.check()
            if self._is_busy:
                raise UsageError("this connection is in the middle of a call, which a handler of a "
                                 "signal or of the log has interrupted")
            try:
                self._is_busy = True
                return self._run(getattr(lib, name), self.handle, *arguments)
            finally:
                self._is_busy = False

    def call_now(self, name: str, *arguments: Any) -> None:
        """Calls a function of the library that never waits, also during the call of another
        thread."""
        with self._brief:
            self.check()
            getattr(lib, name)(self.handle, *arguments)

    def close(self) -> None:
        """Ends the call of another thread, and frees the connection. If a handler that has
        interrupted a call calls close(), the connection is freed after the interrupted call has
        returned."""
        if os.getpid() != self.pid or not self.handle:
            return
        if _thread.logging or not self._lock.acquire(blocking=False):
            self._closing = True
            if _thread.logging:
                self.abandon()
                return
            self._lock.acquire()  # pylint: disable=consider-using-with
        try:
            if self._is_busy:
                self._closing = True
                self.abandon()
            elif self.handle:
                self._free()
        finally:
            self._lock.release()

    def _free(self) -> None:
        """Frees the connection. The library clears `handle`, and calls none of our functions after
        this."""
        with self._brief:
            self._closing = True
        try:
            self._is_busy = True
            self._run(lib.close, ctypes.byref(self.handle))
        finally:
            self._is_busy = False
            if not self.handle:
                _open.discard(self)

    def abandon(self) -> None:
        """Lets another thread close the connection. Takes no lock and does not wait."""
        if os.getpid() == self.pid:
            _abandoned.put(self)


def check_thread() -> None:
    """Raises UsageError if the library waits for a log handler on this thread."""
    if _thread.logging:
        raise UsageError("a log handler cannot call libcnnps")


# Connections that are not closed. This set keeps a connection alive after its Client is gone.
_open: Set[Connection] = set()
_abandoned: "queue.SimpleQueue[Optional[Connection]]" = queue.SimpleQueue()
_closer: Optional[threading.Thread] = None


def _close_abandoned(abandoned: "queue.SimpleQueue[Optional[Connection]]") -> None:
    for connection in iter(abandoned.get, None):
        connection.close()


def _start() -> None:
    """Starts the thread that closes abandoned connections."""
    global _closer
    if _closer is None:
        _closer = threading.Thread(target=_close_abandoned, args=(_abandoned,), daemon=True,
                                   name="cnnps-closer")
        _closer.start()


@atexit.register
def _close_all() -> None:
    """Closes all connections when the interpreter exits. The threads of libcnnps call Python code,
    so they must end before the interpreter."""
    global _closer
    threads = [threading.Thread(target=one.close, daemon=True) for one in list(_open)[1:]]
    # Python 3.12 and later raise RuntimeError, because no thread can start while the interpreter
    # exits
    with contextlib.suppress(RuntimeError):
        for thread in threads:
            thread.start()
    for connection in list(_open):
        connection.close()
    for thread in threads:
        if thread.ident:
            thread.join(_SECONDS)
    if _closer is not None:
        _abandoned.put(None)
        _closer.join(_SECONDS)
        _closer = None


# objects that threads of the parent may use at the moment of a fork; a child does not free them
_kept: List[Any] = []


def _forget() -> None:
    """In a forked child: forgets the connections of the parent, and replaces the objects that a
    thread of the parent may have locked at the moment of the fork."""
    global _abandoned, _closer, _open, _log_line
    _kept.extend([*_open, _abandoned, _log_line])
    _open, _abandoned, _closer, _log_line = set(), queue.SimpleQueue(), None, _new_log()
    _thread.calls, _thread.logging = [], 0


os.register_at_fork(after_in_child=_forget)

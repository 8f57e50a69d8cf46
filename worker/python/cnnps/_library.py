"""Makes the structs and functions of <cnnps.h> available through ctypes.

ctypes releases the GIL during each call, and acquires it for each callback.
"""
import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from pathlib import Path

TRAIN, EVAL = 1, 2
PULL_START, PULL_WAIT, PULL_EVAL = 1, 2, 4
LANES = ("auto", "tcp", "shm")
WIRES = ("fp32", "bf16")
MODES = {1: "downpour", 2: "ssp", 3: "sync", 4: "sandblaster", 5: "easgd"}

Stop = CFUNCTYPE(c_int, c_void_p)
Allocate = CFUNCTYPE(c_void_p, c_size_t)
Release = CFUNCTYPE(None, c_void_p)
Report = CFUNCTYPE(None, c_void_p, c_char_p)
Log = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class Data(Structure):
    _fields_ = [(name, c_uint32) for name in (
        "n_train", "n_test", "rows", "cols", "classes", "channels")] + [("xxh3", c_uint64)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t), ("server", c_char_p), ("key", c_char_p), ("server_key", c_char_p),
        ("name", c_char_p), ("device", c_char_p), ("data", Data), ("observer", c_int),
        ("connect_timeout_ms", c_uint32), ("disconnect_timeout_ms", c_uint32),
        ("batch_timeout_ms", c_uint32), ("replay_bytes", c_uint64), ("stop", Stop),
        ("stop_arg", c_void_p), ("allocate", Allocate), ("release", Release), ("report", Report),
        ("report_arg", c_void_p), ("log", Log), ("log_arg", c_void_p), ("log_level", c_int),
        ("lane", c_int), ("metrics", c_char_p), ("validates", c_int),
        ("tensors", c_char_p), ("wire", c_int), ("connections", c_uint64)]


class Info(Structure):
    _fields_ = [
        ("model", c_char_p), ("n_params", c_uint64), ("seed", c_uint64), ("batch", c_uint32),
        ("epochs", c_uint32), ("worker", c_uint32), ("incarnation", c_uint32), ("term", c_uint64),
        ("mode", c_int), ("n_push", c_uint32), ("n_fetch", c_uint32), ("push_sum", c_int),
        ("prefetch", c_int), ("local_rate", c_double), ("momentum", c_double),
        ("validate", c_uint32), ("tensors", c_char_p)]


class Lease(Structure):
    _fields_ = [
        ("size", c_size_t), ("kind", c_int), ("epoch", c_uint32), ("first", c_uint32),
        ("count", c_uint32), ("eval_id", c_uint64), ("exact", c_int), ("version", c_uint64),
        ("term", c_uint64)]


class Pull(Structure):
    _fields_ = [
        ("size", c_size_t), ("flags", c_uint32), ("into", c_void_p), ("weights", c_void_p),
        ("version", c_uint64), ("term", c_uint64), ("elastic", c_double)]


class Work(Structure):
    _fields_ = [
        ("epoch", c_uint32), ("first", c_uint32), ("count", c_uint32), ("images", c_uint32),
        ("loss", c_float)]


class Push(Structure):
    _fields_ = [
        ("size", c_size_t), ("gradient", c_void_p), ("offset", c_uint64), ("count", c_uint64),
        ("version", c_uint64), ("work", Work), ("then", POINTER(Pull))]


class Evaluation(Structure):
    _fields_ = [
        ("size", c_size_t), ("correct", c_uint32), ("loss_sum", c_double),
        ("metric_sum", c_double * 4)]


class Stats(Structure):
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "pushed", "acked", "rejected", "durable", "last_version", "reconnects", "replayed",
        "superseded", "compute_us", "weights_us", "push_us", "lease_us", "copy_us")]


_FUNCTIONS = {
    "version": (c_char_p,),
    "error": (c_char_p, c_void_p),
    "strerror": (c_char_p, c_int),
    "connect": (c_int, POINTER(c_void_p), POINTER(Options)),
    "info": (POINTER(Info), c_void_p),
    "close": (None, POINTER(c_void_p)),
    "lease": (c_int, c_void_p, POINTER(Lease)),
    "pull": (c_int, c_void_p, POINTER(Pull)),
    "push": (c_int, c_void_p, POINTER(Push)),
    "gradient": (c_void_p, c_void_p),
    "result": (c_int, c_void_p, POINTER(Lease), POINTER(Evaluation)),
    "flush": (c_int, c_void_p, c_int, c_uint32),
    "alive": (None, c_void_p),
    "stats": (c_int, c_void_p, POINTER(Stats)),
    "status": (c_int, c_void_p, c_char_p, c_size_t),
    "checkpoint": (c_int, c_void_p, POINTER(c_uint64)),
    "drain": (c_int, c_void_p),
    "log_level": (c_int, c_void_p, c_char_p),
    "release": (c_int, c_void_p, c_char_p),
}


def _path() -> str:
    """Returns the path of libcnnps, the first of these that is a file: the value of $CNNPS_LIBRARY,
    the library in the wheel, the library in the source tree. If none of them is a file, returns
    only the name of the library, for which the system then searches."""
    here = Path(__file__).resolve()
    places = [Path(os.environ.get("CNNPS_LIBRARY", "")), here.parent / "lib" / "libcnnps.so.0",
              here.parents[3] / "build" / "release" / "libcnnps.so.0"]
    return next((str(p) for p in places if p.is_file()), "libcnnps.so.0")


class _Library:
    """The functions of libcnnps, as attributes with names without the prefix `cnnps_`."""

    def __init__(self) -> None:
        path = _path()
        try:
            library = ctypes.CDLL(path)
        except OSError as why:
            raise ImportError(f"cnnps: {why}; install the wheel or libcnnps, or name the library "
                              "in CNNPS_LIBRARY") from None
        for name, (result, *arguments) in _FUNCTIONS.items():
            try:
                function = getattr(library, "cnnps_" + name)
            except AttributeError:
                raise ImportError(f"cnnps: {path} has no function cnnps_{name}: it is not the "
                                  "libcnnps of this package, or an older one") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(name)


lib = _Library()

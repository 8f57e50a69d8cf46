"""Checks arguments before ctypes converts them. ctypes would cut integers off that are too large,
and texts at a NUL, without an error.

A wrong type raises TypeError, and a wrong value raises UsageError, which is a ValueError. The text
of the exception names the argument.
"""
import numbers
import operator
import os
from typing import Any, Iterable, Optional, Tuple, Type, TypeVar

from .errors import UsageError

T = TypeVar("T")


def _kind(value: object) -> str:
    return type(value).__name__


def instance(name: str, value: Any, kind: Type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected cnnps.{kind.__name__}, not {_kind(value)}")
    return value


def whole(name: str, value: Any, bits: int = 32, minimum: int = 0) -> int:
    """Returns an integer from `minimum` to 2**bits - 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, not {_kind(value)}") from None
    if not minimum <= number < 1 << bits:
        raise UsageError(f"{name}={number}: expected {minimum} to {(1 << bits) - 1}")
    return number


def number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: expected a number, not {_kind(value)}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name}: expected a number, not {_kind(value)}") from None
    except (ValueError, OverflowError) as why:
        raise UsageError(f"{name}: {why}") from None


def milliseconds(name: str, seconds: Any, minimum: int = 1) -> int:
    """Returns a time in milliseconds, rounded up: 0 would be the default of the library."""
    value = number(name, seconds)
    if not minimum / 1e6 <= value <= (2**32 - 1) / 1000:
        raise UsageError(f"{name}={value:g}: expected seconds, more than 0 and at most 4294967"
                         if minimum else f"{name}={value:g}: expected 0 to 4294967 seconds")
    return min(2**32 - 1, max(minimum, -int(-value * 1000 // 1)))


def text(name: str, value: Any) -> Optional[bytes]:
    """Returns a text or a path as bytes for the library, and None for None."""
    if value is None:
        return None
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{name}: expected a text, not {_kind(value)}") from None
    except UnicodeEncodeError as why:
        raise UsageError(f"{name}: {why}") from None
    if b"\0" in encoded:
        raise UsageError(f"{name}={value!r}: a text must not contain NUL")
    return encoded


def path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: expected a path, not {_kind(value)}")
    text(name, value)
    return os.fspath(value)


def word(name: str, value: Any) -> str:
    """Returns the value of an option of cnn-ps as a word of its command line."""
    if not isinstance(value, (str, os.PathLike, numbers.Number)):
        raise TypeError(f"{name}: expected a text or a number, not {_kind(value)}")
    text(name, str(value))
    return str(value)


def names(name: str, value: Any) -> Tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: expected a list of names, not {_kind(value)}")
    found = tuple(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name}: expected a list of names, and one is {_kind(one)}")
    return found

"""The order of the samples in an epoch, and the samples that --validate holds back (proto/WIRE.md,
"Order of images" and "Images of validation")."""
import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ORDER, _HOLD_BACK = 2, 7  # numbers of the streams of random numbers


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = x + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _draws(seed: int, stream: int, sub: int, n: int) -> NDArray[np.uint64]:
    state = _mix(np.array([seed], np.uint64)) ^ np.uint64(stream)
    state = _mix(_mix(state) ^ np.uint64(sub))
    return _mix(state + np.arange(n, dtype=np.uint64) * _GAMMA)


def _shuffle(seed: int, stream: int, sub: int, n: int) -> NDArray[np.int64]:
    place = np.arange(n - 1, 0, -1, dtype=np.uint64)
    draws, size = _draws(seed, stream, sub, n - 1), place + np.uint64(1)
    low = (draws & np.uint64(0xFFFFFFFF)) * size >> np.uint64(32)
    # the upper 64 bits of draws * size
    other = ((draws >> np.uint64(32)) * size + low) >> np.uint64(32)
    a = list(range(n))
    for i, j in zip(place.tolist(), other.tolist()):
        a[i], a[j] = a[j], a[i]
    return np.array(a, np.int64)


def order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """Returns the samples 0 to n - 1 in the order of an epoch. Every worker computes the same
    order."""
    return _shuffle(seed, _ORDER, epoch, n)


def held_back(n: int, count: int) -> NDArray[np.int64]:
    """Returns the `count` of n training samples that a run with --validate holds back."""
    return np.sort(_shuffle(0, _HOLD_BACK, 0, n)[:count]) if count else np.array([], np.int64)

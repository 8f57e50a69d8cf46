"""A second implementation in plain NumPy: cnn-ps's networks, initial weights and order of images.

This implementation is written only from proto/WIRE.md and common/model.h, in float64 and as simply
as possible.
"""
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

MASK, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15
INIT, ORDER = 1, 2


def mix(x):
    z = (x + GAMMA) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def draws(seed, stream, sub):
    """Yields the 64-bit random numbers of one stream, without end."""
    state = mix(mix(mix(seed) ^ stream) ^ sub)
    while True:
        yield mix(state)
        state = (state + GAMMA) & MASK


def order(seed, epoch, n):
    """Returns the order in which an epoch uses the n images."""
    row, out = draws(seed, ORDER, epoch), list(range(n))
    for i in range(n - 1, 0, -1):
        j = next(row) * (i + 1) >> 64
        out[i], out[j] = out[j], out[i]
    return np.array(out)


def initial(seed, number, shape, fan_in):
    """Returns the initial values of tensor `number`."""
    row, bound = draws(seed, INIT, number), 1 / np.sqrt(fan_in)
    units = np.array([(next(row) >> 11) * 2.0**-53 for _ in range(int(np.prod(shape)))])
    return ((2 * units - 1) * bound).astype(np.float32).reshape(shape)


def conv(x, w, b, stride, pad):
    xp = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    k = w.shape[2]
    windows = sliding_window_view(xp, (k, k), (2, 3))[:, :, ::stride, ::stride]
    y = np.einsum("ncijkl,fckl->nfij", windows, w, optimize=True) + b[:, None, None]

    def back(dy):
        dxp = np.zeros_like(xp)
        h, v = dy.shape[2] * stride, dy.shape[3] * stride
        for r in range(k):
            for c in range(k):
                dxp[:, :, r:r + h:stride, c:c + v:stride] += np.einsum(
                    "nfij,fc->ncij", dy, w[:, :, r, c], optimize=True)
        inner = dxp[:, :, pad:xp.shape[2] - pad, pad:xp.shape[3] - pad]
        dw = np.einsum("ncijkl,nfij->fckl", windows, dy, optimize=True)
        return inner, dw, dy.sum((0, 2, 3))
    return y, back


def relu(x):
    return np.maximum(x, 0), lambda dy: (dy * (x > 0),)


def pool(x, k):
    n, c, h, w = x.shape
    tiles = x.reshape(n, c, h // k, k, w // k, k).transpose(0, 1, 2, 4, 3, 5).reshape(
        n, c, h // k, w // k, k * k)
    first = np.eye(k * k)[tiles.argmax(-1)]

    def back(dy):
        d = (first * dy[..., None]).reshape(n, c, h // k, w // k, k, k)
        return (d.transpose(0, 1, 2, 4, 3, 5).reshape(x.shape),)
    return tiles.max(-1), back


def fc(x, w, b):
    flat = x.reshape(len(x), -1)
    return flat @ w.T + b, lambda dy: ((dy @ w).reshape(x.shape), dy.T @ flat, dy.sum(0))


def gradient(layers, params, images, labels):
    """Returns the gradient of the mean softmax loss of the images. `layers` is a model text, and
    `params` is the list of the model's tensors."""
    x, rest, backs = images[:, None] / 255.0, [p.astype(np.float64) for p in params], []
    for text in layers.split():
        kind, *arguments = text.split(":")
        named = {k: int(v) for k, v in (a.split("=") for a in arguments if "=" in a)}
        if kind == "conv":
            x, back = conv(x, rest.pop(0), rest.pop(0), named.get("stride", 1), named.get("pad", 0))
        elif kind == "fc":
            x, back = fc(x, rest.pop(0), rest.pop(0))
        else:
            x, back = relu(x) if kind == "relu" else pool(x, int(arguments[0]))
        backs.append(back)
    e = np.exp(x - x.max(1, keepdims=True))
    d = (e / e.sum(1, keepdims=True) - np.eye(x.shape[1])[labels]) / len(x)
    grads = []
    for back in reversed(backs):
        d, *g = back(d)
        grads = g + grads
    return grads

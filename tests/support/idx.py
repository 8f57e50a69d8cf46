"""A minimal reader and writer of IDX files."""
import gzip
import struct

import numpy as np

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
         "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read(directory, name):
    """Returns the array in directory/name, or in directory/name.gz."""
    plain = directory / name
    raw = plain.read_bytes() if plain.exists() else gzip.decompress(
        (directory / (name + ".gz")).read_bytes())
    dims = struct.unpack(f">{raw[3]}I", raw[4:4 + 4 * raw[3]])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)


def encode(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + \
        array.tobytes()


def cut(source, target, train, test):
    """Write the first `train` training images and the first `test` test images of a data set, with
    their labels, as a data set of their own."""
    for name, n in zip(NAMES, (train, train, test, test)):
        (target / name).write_bytes(encode(read(source, name)[:n]))

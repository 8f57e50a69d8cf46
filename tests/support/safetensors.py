"""Reads a .safetensors file of float32 tensors."""
import json

import numpy as np


def load(path):
    """Returns the tensors of a file as {name: array}, in the order of their bytes in the file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert t["dtype"] == "F32"
        first, end = (8 + size + o for o in t["data_offsets"])
        tensors[name] = np.frombuffer(raw[first:end], "<f4").reshape(t["shape"])
    return tensors


def flat(path):
    """Returns all values of a file as one vector."""
    return np.concatenate([t.ravel() for t in load(path).values()])

"""Read a .safetensors file of float32 tensors."""
import json

import numpy as np


def load(path):
    """{name: array}, in the file's order of bytes."""
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
    """All values in one vector."""
    return np.concatenate([t.ravel() for t in load(path).values()])

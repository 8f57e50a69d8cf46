"""Reads and writes files of named tensors (.safetensors): an 8-byte length, a JSON header, then the
data."""
import json
import os
from typing import Any, Dict, Mapping, Tuple

import numpy as np
from numpy.typing import NDArray

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64,
          "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


def save(path: str, tensors: Mapping[str, NDArray[Any]], **metadata: str) -> None:
    """Writes tensors to a file, atomically."""
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, array in tensors.items():
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    os.replace(part, path)


def load(path: str) -> Tuple[Dict[str, NDArray[Any]], Dict[str, str]]:
    """Returns the tensors of a file, and its metadata."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    return {name: np.frombuffer(data, _TYPES[t["dtype"]], offset=t["data_offsets"][0],
                                count=int(np.prod(t["shape"]))).reshape(t["shape"])
            for name, t in header.items()}, metadata

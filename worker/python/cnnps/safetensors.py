"""Reads and writes files of named tensors (.safetensors): an 8-byte length, a JSON header, then the
data."""
import json
import math
import operator
import os
from typing import Any, Dict, Mapping, Tuple

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, UsageError

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64,
          "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


def save(path: str, tensors: Mapping[str, NDArray[Any]], **metadata: str) -> None:
    """Writes tensors to a file, atomically. Raises UsageError if a tensor has a type of values that
    the format lacks, such as complex numbers."""
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, array in tensors.items():
        if array.dtype not in _NAMES:
            raise UsageError(f"tensor {name}: .safetensors files have no type {array.dtype}")
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
    """Returns the tensors of a file, and its metadata. Raises DataError if the file is malformed or
    has a type of values that numpy lacks, such as BF16."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > os.fstat(file.fileno()).st_size - 8:
                raise ValueError("it ends before the end of its header")
            header = json.loads(file.read(length))
            data = file.read()
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        metadata = header.pop("__metadata__", {})
        return {name: _tensor(name, t, data) for name, t in header.items()}, metadata
    except (ValueError, RecursionError) as why:
        raise DataError(f"{path}: no .safetensors file: {why}") from None


def _tensor(name: str, about: Any, data: bytes) -> NDArray[Any]:
    try:
        kind = np.dtype(_TYPES[about["dtype"]])
        shape = [operator.index(n) for n in about["shape"]]
        begin, end = (operator.index(n) for n in about["data_offsets"])
    except (KeyError, TypeError, ValueError) as why:
        raise ValueError(f"tensor {name}: {type(why).__name__}: {why}") from None
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) \
            or end - begin != count * kind.itemsize:
        raise ValueError(f"tensor {name}: its shape or place is wrong")
    return np.frombuffer(data, kind, offset=begin, count=count).reshape(shape)

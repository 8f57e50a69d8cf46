"""Trains PyTorch models with a cnn-ps server.

The server has one vector and runs the optimizer on it. The vector consists of the parameters of the
model, in the order of model.named_parameters(), followed by the statistics of the model. The
statistics are the float32 buffers of the state_dict, such as running_mean and running_var of
BatchNorm. The optimizer does not change the statistics. Instead, a worker pushes the statistics of
its batch, and each update moves the server's statistics towards these by a tenth of the distance
(PyTorch's momentum of 0.1). Frozen parameters (requires_grad=False) are statistics, too: every
worker pushes the value that they have. All other buffers, such as counters, stay in each worker.
"""
import hashlib
import logging
import math
import os
import re
from dataclasses import dataclass, field
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple,
                    Union)

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from . import _arguments as check
from . import safetensors
from ._scratch import Scratch
from .client import Batch, Client, Data, Lease, Vector, connect, metric_names
from .errors import Done, ShutdownError, UsageError
from .launched import Shared, check_checkpoints, check_init, was_drained
from .programs import export
from .server import Server
from .training import Worker

Loss = Callable[..., torch.Tensor]
Metric = Callable[..., torch.Tensor]
_EVAL_BATCH = 256
# number of training samples that serve as test samples if there is no eval_dataset
_EVAL_OF_TRAINING = 1000
_INTEGERS = {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
             torch.uint8: "U8", torch.bool: "BOOL"}
_MAX_LIST, _MAX_LINES = 49152, 4096  # maximum numbers of bytes and of lines of a list of tensors
_MAX_CONSTANT = 1024  # maximum number of values of an integer tensor in the list
_log = logging.getLogger("cnnps")


def _trained(model: torch.nn.Module) -> Dict[str, torch.nn.Parameter]:
    """Returns the parameters with requires_grad=True, by name."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, not {type(model).__name__}")
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise UsageError("the model has no parameters to train")
    for name, p in found.items():
        if p.dtype != torch.float32:
            raise TypeError(f"model: {name} is {str(p.dtype)[6:]}: parameters must be float32; for "
                            "faster arithmetic use torch.autocast in the forward pass")
    return found


def _statistics(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Returns the float32 buffers and frozen parameters of the state_dict, each of them once. The
    result lacks tensors with an infinite value, such as the mask of a transformer, because they are
    constants."""
    found: Dict[str, torch.Tensor] = {}
    seen = {id(p) for p in _trained(model).values()}
    for name, t in model.state_dict(keep_vars=True).items():
        if id(t) not in seen and t.dtype == torch.float32 and bool(torch.isfinite(t).all()):
            found[name] = t
        seen.add(id(t))
    return found


def _sizes(model: torch.nn.Module) -> str:
    """Returns the value of --model for this model."""
    running = sum(t.numel() for t in _statistics(model).values())
    n = sum(p.numel() for p in _trained(model).values()) + running
    return f"vector:{n}:running={running}" if running else f"vector:{n}"


def _vector(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Returns the tensors that form the server's vector, by name, in the vector's order."""
    return {**_trained(model), **_statistics(model)}


def _fits_list(name: str, t: torch.Tensor) -> bool:
    return bool(re.fullmatch(r"[!#-\[\]-~]{1,255}", name)) and t.numel() > 0 and t.dim() <= 8


def tensor_list(model: torch.nn.Module) -> str:
    """Returns the names and shapes of the state_dict, and the values of its integer tensors, as the
    server stores them for exports (proto/WIRE.md, "Tensors"). Returns "" if the server cannot store
    such a list."""
    tensors = _vector(model)
    seen = {id(t): name for name, t in tensors.items()}
    lines = [f"{name} F32 {_shape(t)}" for name, t in tensors.items()]
    for name, t in model.state_dict(keep_vars=True).items():
        if seen.get(id(t)) == name:
            continue
        if id(t) in seen and _fits_list(name, t):
            lines.append(f"{name} = {seen[id(t)]}")
        elif t.dtype in _INTEGERS and t.numel() <= _MAX_CONSTANT and _fits_list(name, t):
            values = ",".join(str(int(v)) for v in t.reshape(-1).tolist())
            lines.append(f"{name} {_INTEGERS[t.dtype]} {_shape(t)} {values}")
            seen[id(t)] = name
        else:
            _log.warning("exports do not contain the buffer %s (%s, %d values)", name, t.dtype,
                         t.numel())
    text = "".join(line + "\n" for line in lines)
    if (len(text) <= _MAX_LIST and len(lines) <= _MAX_LINES
            and all(_fits_list(name, t) for name, t in tensors.items())):
        return text
    _log.warning("exports have one tensor, \"vector\": the model has too many tensors, or a tensor "
                 "without values, with more than 8 dimensions or with an unusual name")
    return ""


def _shape(t: torch.Tensor) -> str:
    return "x".join(map(str, t.shape)) or "scalar"


class _OneBatch:
    """A context manager: within its block the momentum of BatchNorm and other normalizing layers is
    1. After a forward pass their running statistics are then those of this batch, which the worker
    pushes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers: List[Tuple[Any, Any]] = [
            (m, m.momentum) for m in model.modules()
            if getattr(m, "track_running_stats", False) and hasattr(m, "momentum")]

    def __enter__(self) -> None:
        for layer, _ in self._layers:
            layer.momentum = 1.0

    def __exit__(self, *_: Any) -> None:
        for layer, momentum in self._layers:
            layer.momentum = momentum


class Parameters:
    """The parameters and statistics of a model as one vector in CPU memory, `flat`. The parameters
    of a model on the CPU are views of `flat`, and statistics are copied."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter],
                 statistics: Iterable[torch.Tensor] = ()) -> None:
        self.parameters, self._statistics = list(parameters), list(statistics)
        if not self.parameters:
            raise UsageError("the model has no parameters to train")
        kinds = {(p.device, p.dtype) for p in self.parameters}
        kinds |= {(t.device, t.dtype) for t in self._statistics}
        if len(kinds) != 1 or next(iter(kinds))[1] != torch.float32:
            raise TypeError("the parameters must be float32 and on one device")
        self.device = next(iter(kinds))[0]
        self.n_trained = sum(p.numel() for p in self.parameters)
        self.n = self.n_trained + sum(t.numel() for t in self._statistics)
        with torch.no_grad():
            self._inside = torch.cat([
                t.detach().reshape(-1) for t in [*self.parameters, *self._statistics]])
            self.flat = self._inside.to("cpu")
            begin = 0
            for p in self.parameters:
                p.data = self._inside[begin:begin + p.numel()].view_as(p)
                begin += p.numel()

    def numpy(self) -> Vector:
        array: Vector = self.flat.numpy()
        return array

    def load(self, weights: Optional[Vector] = None) -> None:
        """Sets the parameters of the model to `weights` or, if `weights` is None, to the weights in
        `flat`."""
        if weights is not None and weights.ctypes.data != self.numpy().ctypes.data:
            self.flat.copy_(torch.from_numpy(weights))
        if self._inside is not self.flat and self.device.type != "cpu":
            self._inside.copy_(self.flat)
        begin = self.n_trained
        with torch.no_grad():
            for t in self._statistics:
                t.copy_(self._inside[begin:begin + t.numel()].view_as(t))
                begin += t.numel()

    def gradient(self, out: Vector) -> None:
        """Writes the gradients of the parameters to `out`, followed by the statistics."""
        parts = [torch.zeros(p.numel(), device=self.device) if p.grad is None
                 else p.grad.reshape(-1) for p in self.parameters]
        parts += [t.reshape(-1) for t in self._statistics]
        target = torch.from_numpy(out)
        with torch.no_grad():
            if self.device.type == "cpu":
                torch.cat(parts, out=target)
            else:
                target.copy_(torch.cat(parts))

    def clear(self) -> None:
        for p in self.parameters:
            p.grad = None


def _check_sizes(client: Client, own: Parameters) -> None:
    def text(n: int, trained: int) -> str:
        return f"{n} parameters" + (f" ({n - trained} are statistics)" if n > trained else "")

    info = client.info
    if (info.n_params, info.n_trained) != (own.n, own.n_trained):
        raise UsageError(f"the model has {text(own.n, own.n_trained)}, the run's model has "
                         f"{text(info.n_params, info.n_trained)}")


def _check_pushes(client: Client) -> None:
    """Raises UsageError if the run needs other pushes than one gradient per batch, computed at the
    newest weights (proto/WIRE.md, "Modes")."""
    info = client.info
    wrong = [] if info.mode in ("downpour", "ssp") else [f"mode {info.mode}"]
    wrong += [f"{name} {n}" for name, n in (("n_push", info.n_push), ("n_fetch", info.n_fetch))
              if n != 1 and not wrong]
    if wrong:
        raise UsageError(f"AsyncOptimizer: the run has {', '.join(wrong)}, but AsyncOptimizer needs "
                         "mode downpour or ssp, with n_push and n_fetch 1; cnnps.torch.train and "
                         "cnnps.Worker train in every mode")


class _Group(Dict[str, Any]):
    """A group of parameters. The group has no learning rate, because the server has it. A scheduler
    of PyTorch that reads the rate gets an exception that says so."""

    def __missing__(self, name: str) -> Any:
        if name == "lr":
            raise TypeError("AsyncOptimizer: the server has the learning rate, so schedulers of "
                            "PyTorch have no effect: start cnn-ps with lr=, schedule= and warmup=")
        raise KeyError(name)


def _checked(parameters: Any) -> List[torch.nn.Parameter]:
    """Returns `parameters`, the argument of AsyncOptimizer, as a list. Raises TypeError if it is
    not an iterable of tensors."""
    wrong = type(parameters).__name__
    if isinstance(parameters, Iterable) and not isinstance(parameters, (torch.Tensor, str)):
        found = list(parameters)
        kinds = [type(p).__name__ for p in found if not isinstance(p, torch.Tensor)]
        if not kinds:
            return found
        wrong = f"a list in which one is {kinds[0]}"
    raise TypeError(f"parameters: expected a model or model.parameters(), not {wrong}; groups of "
                    "parameters are impossible, because the server runs the optimizer")


class AsyncOptimizer(torch.optim.Optimizer):
    """An optimizer for your own training loop: step() pushes the gradient and pulls the newest
    weights.

        optimizer = cnnps.torch.AsyncOptimizer(model.parameters(), client)
        for lease in client.leases():
            for batch in lease.batches():
                optimizer.zero_grad()
                loss = ...
                loss.backward()
                optimizer.step(batch, loss.item())

    The server runs the real optimizer, so learning rate and weight decay are options of the server.
    Its options schedule= and warmup= change the learning rate during the run. A scheduler of
    PyTorch raises TypeError when it reads the learning rate. The constructor sets the parameters to
    the weights of the server. For a model with statistics, such as those of BatchNorm, or with
    frozen parameters, pass the model instead of its parameters. The momentum of its normalizing
    layers then becomes 1, so that the layers have the statistics of the newest batch until step()
    replaces them by the statistics of the server.

    This loop pushes the gradient of each batch at the newest weights. That is right only in the
    modes downpour and ssp with n_push and n_fetch 1; for any other run the constructor raises
    UsageError. The run's option --prefetch has no effect. cnnps.torch.train() and cnnps.Worker work
    in every mode.
    """

    def __init__(self, parameters: "Union[torch.nn.Module, Iterable[torch.nn.Parameter]]",
                 client: Client) -> None:
        _check_pushes(check.instance("client", client, Client))
        if isinstance(parameters, torch.nn.Module):
            self._vector = Parameters(
                _trained(parameters).values(), _statistics(parameters).values())
            _OneBatch(parameters).__enter__()
        else:
            self._vector = Parameters(_checked(parameters))
        super().__init__(self._vector.parameters, {})
        self.client = client
        _check_sizes(client, self._vector)
        self.pull()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(_Group(param_group))

    def pull(self) -> None:
        """Sets the parameters to the newest weights of the server."""
        self.client.pull(self._vector.numpy())
        self._vector.load()

    def step(self, batch: Optional[Batch] = None, loss: float = 0.0) -> None:  # type: ignore
        gradient = self.client.gradient()
        self._vector.gradient(gradient)
        self.client.push(gradient, batch, loss, then=self._vector.numpy())
        self._vector.load()


# ---- files of a whole model ---------------------------------------------------------------------

def save(model: torch.nn.Module, path: str) -> None:
    """Writes the state_dict of a model to a .safetensors file."""
    safetensors.save(path, {name: t.detach().cpu().contiguous().numpy()
                            for name, t in model.state_dict().items()})


def load(model: torch.nn.Module, path: str) -> None:
    """Loads the state_dict of a model from a .safetensors file that save() or cnn-ctl export wrote.
    Buffers of the model that the file lacks do not change."""
    tensors, _ = safetensors.load(path)
    loaded = {name: torch.from_numpy(t.copy()) for name, t in tensors.items()}
    if list(loaded) == ["vector"]:
        loaded = _named(model, loaded["vector"])
    own = {id(t) for t in _vector(model).values()}
    constants = {name: t for name, t in model.state_dict(keep_vars=True).items()
                 if id(t) not in own}
    model.load_state_dict({**constants, **loaded})


def _named(model: torch.nn.Module, vector: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Returns the tensors of `model` with their values in `vector`, by name. A tensor with several
    names is in the result under each of them."""
    found, begin = {}, 0
    for t in _vector(model).values():
        found[id(t)] = vector[begin:begin + t.numel()].view_as(t)
        begin += t.numel()
    return {name: found[id(t)] for name, t in model.state_dict(keep_vars=True).items()
            if id(t) in found}


def save_init(model: torch.nn.Module, path: str) -> str:
    """Writes the file for `cnn-ps --model TEXT --init FILE`: the parameters and statistics, which
    form the vector, and the list of all tensors. Returns TEXT, which is "vector:N", or
    "vector:N:running=S" for S statistics."""
    tensors = {name: t.detach().cpu().contiguous().numpy() for name, t in _vector(model).items()}
    names = tensor_list(model)
    if names:
        safetensors.save(path, tensors, format="pt", tensor_list=names)
    else:
        flat = np.concatenate([t.reshape(-1) for t in tensors.values()])
        safetensors.save(path, {"vector": flat})
    return _sizes(model)


# ---- training -----------------------------------------------------------------------------------

def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes a metric: the number of samples whose largest output is the target."""
    return (output.argmax(1) == target).sum()


@dataclass
class Evaluation:
    """The results of this worker in one evaluation, as means over the test samples that this worker
    has evaluated."""

    eval_id: int
    samples: int = 0
    loss: float = 0.0
    metrics: Dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """The result of train(). `result` is the last line of output of cnn-ps, parsed, or {} if the
    server runs elsewhere. `evaluations` has the evaluations in which this worker has taken part."""

    result: Dict[str, Any]
    evaluations: List[Evaluation]


def _parts(batch: Any) -> List[Any]:
    """Returns the parts of `batch`, which has the form of a DataLoader's batch: (input, ...,
    target)."""
    if isinstance(batch, (Mapping, torch.Tensor)) or not isinstance(batch, Iterable):
        wrong = f"is {type(batch).__name__}"
    else:
        parts = list(batch)
        kinds = [type(part).__name__ for part in parts if not hasattr(part, "to")]
        if parts and not kinds:
            return parts
        wrong = f"has a part {kinds[0]}" if kinds else "has no parts"
    raise TypeError(f"dataset: a batch {wrong}: expected tensors (input, ..., target); collate_fn, "
                    "a function(list of samples), can make such a batch of other samples")


class _Samples:
    """Batches of a dataset as tensors on the model's device."""

    def __init__(self, dataset: "Dataset[Any]", device: torch.device, collate: Any,
                 num_workers: int) -> None:
        self._dataset, self._device = dataset, device
        self._collate = collate or default_collate
        self._num_workers = num_workers
        self._loaded: Iterator[Any] = iter(())
        self.n = len(dataset)  # type: ignore[arg-type]

    def begin(self, batches: List[Any]) -> None:
        """Sets the indices of the next batches, so that the processes of a DataLoader can load
        these batches in advance."""
        if self._num_workers:
            self._loaded = iter(DataLoader(
                self._dataset, batch_sampler=batches, num_workers=self._num_workers,
                collate_fn=self._collate, multiprocessing_context="fork"))

    def _fetch(self, indices: Any) -> Any:
        if self._num_workers:
            loaded = next(self._loaded, None)
            if loaded is not None:
                return loaded
        if isinstance(self._dataset, TensorDataset):
            chosen = torch.as_tensor(np.asarray(indices, np.int64))
            return [t[chosen] for t in self._dataset.tensors]
        return self._collate([self._dataset[int(i)] for i in indices])

    def get(self, indices: Any) -> Tuple[List[torch.Tensor], torch.Tensor]:
        """Returns the batch of the samples `indices`, as (inputs, target). The target is the last
        part of each sample."""
        parts = [t.to(self._device, non_blocking=True) for t in _parts(self._fetch(indices))]
        return parts[:-1], parts[-1]


def _dataset_id(model: torch.nn.Module, train: int, test: int, named: Optional[str],
                kind: str) -> int:
    """Returns a fingerprint of the name and size of the data set, and of the tensors of the
    model."""
    text = repr([named if named is not None else kind, train, test,
                 [(name, tuple(t.shape)) for name, t in _vector(model).items()]])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Trainer(Worker):
    def __init__(self, client: Client, model: torch.nn.Module, loss: Loss, train: _Samples,
                 test: _Samples, metrics: Mapping[str, Metric]) -> None:
        self._model, self._loss, self._metrics = model, loss, metrics
        self._train, self._test = train, test
        self._parameters = Parameters(_trained(model).values(), _statistics(model).values())
        _check_sizes(client, self._parameters)
        self.evaluations: List[Evaluation] = []
        self._warned: Set[str] = set()  # names of the metrics about which a warning was logged
        super().__init__(client, self._gradient, self._evaluate, self._parameters.numpy())

    def run(self, lease: Lease) -> None:
        if not lease.is_eval:
            self._train.begin([b.indices.tolist() for b in lease.batches()])
        super().run(lease)

    def _gradient(self, weights: Vector, batch: Batch, out: Vector) -> float:
        self._parameters.load(weights)
        self._parameters.clear()
        self._model.train()
        inputs, target = self._train.get(batch.indices)
        loss = self._loss(self._model(*inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self._parameters.gradient(out)
        return float(loss.detach())

    def train(self, progress: bool = False) -> None:
        try:
            with _OneBatch(self._model):
                super().train(progress)
        finally:
            self._parameters.load()

    @torch.no_grad()
    def _evaluate(self, weights: Vector, first: int, count: int) -> Tuple[
            int, float, List[float]]:
        self._parameters.load(weights)
        self._model.eval()
        losses, sums = 0.0, dict.fromkeys(self._metrics, 0.0)
        for begin in range(first, first + count, _EVAL_BATCH):
            chosen = range(begin, min(begin + _EVAL_BATCH, first + count))
            inputs, target = self._test.get(chosen)
            output = self._model(*inputs)
            losses += float(self._loss(output, target)) * len(chosen)
            for name, metric in self._metrics.items():
                sums[name] += self._finite(name, float(metric(output, target)))
        self._note(count, losses, sums)
        others = [value for name, value in sums.items() if name != "accuracy"]
        return int(sums.get("accuracy", 0)), losses, others

    def _finite(self, name: str, value: float) -> float:
        """Returns the value of a metric, or 0 with a warning if it is not finite: the server would
        take a value that is not finite for a sign that training has diverged."""
        if math.isfinite(value):
            return value
        if name not in self._warned:
            _log.warning("metric %s is %s for a batch of test samples; such a batch counts as 0",
                         name, value)
            self._warned.add(name)
        return 0.0

    def _note(self, count: int, losses: float, sums: Dict[str, float]) -> None:
        evaluation = self._evaluated[0]
        if not self.evaluations or self.evaluations[-1].eval_id != evaluation:
            self.evaluations.append(Evaluation(evaluation))
        e = self.evaluations[-1]
        share = count / (e.samples + count)
        e.samples += count
        e.loss += (losses / count - e.loss) * share
        for name, value in sums.items():
            old = e.metrics.get(name, 0.0)
            e.metrics[name] = old + (value / count - old) * share


def _check_metrics(metrics: Mapping[str, Metric]) -> None:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics: expected {{name: function}}, not {type(metrics).__name__}")
    metric_names(tuple(metrics))
    for name, metric in metrics.items():
        if not callable(metric):
            raise TypeError(f"metrics: {name}: expected a function, not {type(metric).__name__}")
    if "none" in metrics:
        raise UsageError("metrics: none is the name of a run that has no metric")


def train(model: torch.nn.Module, loss: Loss, dataset: "Dataset[Any]", *,
          eval_dataset: "Optional[Dataset[Any]]" = None,
          metrics: Optional[Mapping[str, Metric]] = None, dataset_id: Optional[str] = None,
          server: Union[str, Server, None] = None, name: Optional[str] = None,
          key: Optional[str] = None, num_workers: int = 0, collate_fn: Any = None,
          progress: bool = False, **options: Any) -> Report:
    """Trains a model to the end of the run. The model then has the final weights, unless `server`
    is an address. A server without checkpoints raises UsageError. If the run has already ended, the
    call returns without training. The rules stop_at and patience_epochs end the run, too. A drain
    for any other reason raises ShutdownError.

    loss(output, target): the mean loss of a batch. A sample of the dataset is (input, ..., target).
    eval_dataset: the test samples, which the workers evaluate after each epoch; None: the first
    1000 training samples. With the option validate=N, the test samples are N training samples,
    which no worker trains on. metrics: {name: function(output, target)}. A function returns the sum
    of the metric over a batch; "accuracy" is the number of correct answers. Up to four other
    metrics are possible. The server reports the means over the test samples. Its option --metrics
    must list these names. dataset_id: any text that names the data. The server refuses a worker
    whose text differs. server: an address, or a cnnps.Server with `--model TEXT --init FILE`
    (save_init writes the file). None: the server of `python -m cnnps.run`, or $CNN_SERVER. If there
    is neither, train() starts a server with `options`, such as epochs=3 (the default; at least 1),
    batch_size=64, optimizer="adam", lr=0.001, mode="ssp". The server at $CNN_SERVER has its own
    options: `options` then have no effect. If the argument `server` is given, `options` raise
    TypeError. num_workers: number of processes that load batches in advance, as in DataLoader.
    collate_fn: makes a batch, tensors (input, ..., target), of a list of samples. key: for a server
    that runs elsewhere, the secret key of this worker. If train() starts the server, `key` is the
    secret key of the server, and the worker uses worker.key and server.pub beside this file, as
    `cnn-ctl keygen` writes them. A server with bind="tcp://0.0.0.0:5555", which is open to the
    network, needs `key`.
    """
    check_init(options)
    if server is not None and options:
        raise TypeError("train(server=...) takes no options of cnn-ps, because the server has its "
                        f"own: {', '.join(options)}")
    _check_metrics(metrics or {})
    device = next(iter(_trained(model).values())).device
    names = tuple(metrics or ())
    samples = _Samples(dataset, device, collate_fn, num_workers)
    test = _Samples(eval_dataset if eval_dataset is not None else dataset, device, collate_fn, 0)
    n_test = test.n if eval_dataset is not None else min(test.n, _EVAL_OF_TRAINING)
    data = Data(samples.n, n_test, _dataset_id(
        model, samples.n, n_test, dataset_id, type(dataset).__name__))
    with Scratch() as directory:
        shared: Optional[Shared] = None
        address = ""
        if isinstance(server, Server):
            check_checkpoints(server.checkpoint_dir)
            shared = Shared(server)
        elif server is not None and not isinstance(server, str):
            raise TypeError(f"server: expected an address or a cnnps.Server, not "
                            f"{type(server).__name__}")
        else:
            address = server or os.environ.get("CNN_SERVER", "")
        if not shared and not address:
            place = os.environ.get("CNNPS_RUN_DIR", directory)
            file = os.path.join(place, f"init-{os.getpid()}.safetensors")
            text = save_init(model, file)
            shared = Shared(model=text, init=file, metrics=metric_names(names), key=key, **options)
        try:
            about: Dict[str, Any] = dict(data=data, name=name, key=key, device=str(device),
                                         metrics=names, tensors=tensor_list(model),
                                         validates=True)
            client = shared.connect(**about) if shared else _connect(address, **about)
            evaluations: List[Evaluation] = []
            if client:
                with client:
                    if client.info.validate:
                        test = _Samples(Subset(dataset, client.held_back.tolist()), device,
                                        collate_fn, 0)
                    worker = _Trainer(client, model, loss, samples, test, metrics or {})
                    evaluations = worker.evaluations
                    worker.train(progress)
            report = Report(shared.result() if shared else {}, evaluations)
            if not client and was_drained(report.result):
                raise ShutdownError("the run was drained before the end of its training, and "
                                    "before this worker was connected")
            if shared:
                load_parameters(model, shared.directory)
            model.eval()
            return report
        finally:
            if shared:
                shared.close()


def _connect(server: str, **options: Any) -> Optional[Client]:
    """Connects to a server. Returns None if the run of this server has ended."""
    try:
        return connect(server, **options)
    except Done:
        return None


def load_parameters(model: torch.nn.Module, checkpoint_dir: str) -> None:
    """Sets the weights and statistics of the model to those of the last checkpoint in
    `checkpoint_dir`. The other buffers of the model do not change."""
    with Scratch() as directory:
        file = os.path.join(directory, "final.safetensors")
        export(checkpoint_dir, file)
        tensors, _ = safetensors.load(file)
    if list(tensors) == ["vector"]:
        tensors = {name: t.numpy() for name, t in _named(
            model, torch.from_numpy(tensors["vector"].copy())).items()}
    with torch.no_grad():
        for name, t in _vector(model).items():
            t.copy_(torch.from_numpy(tensors[name].copy()))

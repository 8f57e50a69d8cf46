"""Trains PyTorch models with a cnn-ps server.

The server has the parameters of a model as one vector, in the order of model.named_parameters(),
and runs the optimizer on this vector. Each worker keeps buffers of its own, such as the running
statistics of BatchNorm, and computes them from its own batches, as with DistributedDataParallel.
"""
import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from . import safetensors
from .client import Batch, Client, Data, Lease, Vector, connect, metric_names
from .launched import Shared
from .programs import export
from .server import Server
from .training import Worker

Loss = Callable[..., torch.Tensor]
Metric = Callable[..., torch.Tensor]
_EVAL_BATCH = 256
_EVAL_OF_TRAINING = 1000  # training samples that serve as test samples without an eval_dataset
_WARM_BATCHES = 20  # batches that BatchNorm's statistics must include before an evaluation


class Parameters:
    """The parameters of a model as one vector in CPU memory, `flat`. The parameters of a model on
    the CPU are views of `flat`."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        kinds = {(p.device, p.dtype) for p in self.parameters}
        if len(kinds) != 1 or next(iter(kinds))[1] != torch.float32:
            raise TypeError("the parameters must be float32 and on one device")
        self.device = next(iter(kinds))[0]
        self.n = sum(p.numel() for p in self.parameters)
        with torch.no_grad():
            self._inside = torch.cat([p.detach().reshape(-1) for p in self.parameters])
            self.flat = self._inside.to("cpu")
            begin = 0
            for p in self.parameters:
                p.data = self._inside[begin:begin + p.numel()].view_as(p)
                begin += p.numel()

    def numpy(self) -> Vector:
        array: Vector = self.flat.numpy()
        return array

    def load(self, weights: Optional[Vector] = None) -> None:
        """Set the parameters of the model to `weights`; None: to the weights in `flat`."""
        if weights is not None and weights.ctypes.data != self.numpy().ctypes.data:
            self.flat.copy_(torch.from_numpy(weights))
        if self._inside is not self.flat and self.device.type != "cpu":
            self._inside.copy_(self.flat)

    def gradient(self, out: Vector) -> None:
        """Write the gradients of the parameters to `out`."""
        parts = [torch.zeros(p.numel(), device=self.device) if p.grad is None
                 else p.grad.reshape(-1) for p in self.parameters]
        target = torch.from_numpy(out)
        with torch.no_grad():
            if self.device.type == "cpu":
                torch.cat(parts, out=target)
            else:
                target.copy_(torch.cat(parts))

    def clear(self) -> None:
        for p in self.parameters:
            p.grad = None


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

    The server runs the real optimizer: learning rate and weight decay are options of the server.
    The constructor sets the parameters to the weights of the server.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], client: Client) -> None:
        self._vector = Parameters(parameters)
        super().__init__(self._vector.parameters, {})
        self.client = client
        if client.info.n_params != self._vector.n:
            raise ValueError(f"the model has {self._vector.n} parameters, the run's "
                             f"{client.info.n_params}")
        self.pull()

    def pull(self) -> None:
        """Set the parameters to the newest weights of the server."""
        self.client.pull(self._vector.numpy())
        self._vector.load()

    def step(self, batch: Optional[Batch] = None, loss: float = 0.0) -> None:  # type: ignore
        gradient = self.client.gradient()
        self._vector.gradient(gradient)
        self.client.push(gradient, batch, loss, then=self._vector.numpy())
        self._vector.load()


# ---- files of a whole model ---------------------------------------------------------------------

def save(model: torch.nn.Module, path: str) -> None:
    """Write the state_dict of a model to a .safetensors file."""
    safetensors.save(path, {name: t.detach().cpu().contiguous().numpy()
                            for name, t in model.state_dict().items()})


def load(model: torch.nn.Module, path: str) -> None:
    """Load the state_dict of a model from a .safetensors file that save() or cnn-ctl export wrote.
    An export stores a tensor with several names once, under the first name."""
    tensors, _ = safetensors.load(path)
    own = {id(t): name for name, t in reversed(list(model.state_dict(keep_vars=True).items()))}
    for name, t in model.state_dict(keep_vars=True).items():
        if name not in tensors and own[id(t)] in tensors:
            tensors[name] = tensors[own[id(t)]]
    model.load_state_dict({name: torch.from_numpy(t.copy()) for name, t in tensors.items()})


def save_init(model: torch.nn.Module, path: str) -> int:
    """Write the file for `cnn-ps --model vector:N --init FILE`: first the parameters with their
    names, which form the vector, and then the buffers. Returns N, the length of the vector."""
    tensors = {name: p.detach().cpu().numpy() for name, p in model.named_parameters()}
    n = sum(t.size for t in tensors.values())
    parameters = {id(p) for p in model.parameters()}
    for name, t in model.state_dict(keep_vars=True).items():
        if id(t) not in parameters:
            tensors[name] = t.detach().cpu().contiguous().numpy()
    safetensors.save(path, tensors, format="pt")
    return n


# ---- training -----------------------------------------------------------------------------------

def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric: the number of samples whose largest output is the target."""
    return (output.argmax(1) == target).sum()


@dataclass
class Evaluation:
    """Results of this worker in one evaluation: means over the test samples that it evaluated."""

    eval_id: int
    samples: int = 0
    loss: float = 0.0
    metrics: Dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """What train() returns. `result` is the last line of output of cnn-ps, parsed; {} if the server
    runs elsewhere. `evaluations` are those of this worker."""

    result: Dict[str, Any]
    evaluations: List[Evaluation]


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
        """Announce the indices of the next batches, so that the processes of a DataLoader can load
        them in advance."""
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
        """The batch of the samples `indices`, as (inputs, target). The target is the last part of
        each sample."""
        parts = [t.to(self._device, non_blocking=True) for t in self._fetch(indices)]
        return parts[:-1], parts[-1]


def _dataset_id(model: torch.nn.Module, train: int, test: int, named: Optional[str],
                kind: str) -> int:
    """A fingerprint of the name and size of the data set, and of the tensors of the model."""
    text = repr([named if named is not None else kind, train, test,
                 [(name, tuple(p.shape)) for name, p in model.named_parameters()]])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Trainer(Worker):
    def __init__(self, client: Client, model: torch.nn.Module, loss: Loss, train: _Samples,
                 test: _Samples, metrics: Mapping[str, Metric]) -> None:
        self._model, self._loss, self._metrics = model, loss, metrics
        self._train, self._test = train, test
        self._parameters = Parameters(model.parameters())
        self._batches = 0
        self._has_statistics = any(
            getattr(m, "track_running_stats", False) for m in model.modules())
        self.evaluations: List[Evaluation] = []
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
        loss.backward()
        self._parameters.gradient(out)
        self._batches += 1
        return float(loss.detach())

    def _warm_up(self) -> None:
        """Run batches forward until the statistics of BatchNorm include _WARM_BATCHES batches. A
        worker that has just joined has none yet."""
        self._model.train()
        size = self.client.info.batch
        while self._has_statistics and self._batches < _WARM_BATCHES:
            begin = self._batches * size % self._train.n
            chosen = [(begin + i) % self._train.n for i in range(min(size, self._train.n))]
            self._train.begin([])
            self._model(*self._train.get(chosen)[0])
            self._batches += 1

    @torch.no_grad()
    def _evaluate(self, weights: Vector, first: int, count: int) -> Tuple[
            int, float, List[float]]:
        self._parameters.load(weights)
        self._warm_up()
        self._model.eval()
        losses, sums = 0.0, dict.fromkeys(self._metrics, 0.0)
        for begin in range(first, first + count, _EVAL_BATCH):
            chosen = range(begin, min(begin + _EVAL_BATCH, first + count))
            inputs, target = self._test.get(chosen)
            output = self._model(*inputs)
            losses += float(self._loss(output, target)) * len(chosen)
            for name, metric in self._metrics.items():
                sums[name] += float(metric(output, target))
        self._note(count, losses, sums)
        others = [value for name, value in sums.items() if name != "accuracy"]
        return int(sums.get("accuracy", 0)), losses, others

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


def train(model: torch.nn.Module, loss: Loss, dataset: "Dataset[Any]", *,
          eval_dataset: "Optional[Dataset[Any]]" = None,
          metrics: Optional[Mapping[str, Metric]] = None, dataset_id: Optional[str] = None,
          server: Union[str, Server, None] = None, name: Optional[str] = None,
          key: Optional[str] = None, num_workers: int = 0, collate_fn: Any = None,
          progress: bool = False, **options: Any) -> Report:
    """Train a model to the end of the run. If the checkpoints of the server are on this machine,
    the model then has the final weights.

    loss(output, target): the mean loss of a batch. A sample of the dataset is (input, ..., target).
    eval_dataset: the test samples of each epoch; None: the first 1000 training samples.
    metrics: {name: function(output, target)}. A function returns the sum of the metric over a
    batch; "accuracy" is the number of correct answers. Up to four other metrics are possible. The
    server reports the means over the test samples. Its --metrics must have the same names.
    dataset_id: any text that names the data. The server refuses workers with another text.
    server: an address, or a cnnps.Server with `--model vector:N --init FILE` (save_init writes the
    file). None: the server of `python -m cnnps.run`, or $CNN_SERVER. If there is neither, start a
    server with `options`, such as epochs=3, batch_size=64, optimizer="adam", lr=0.001, mode="ssp".
    num_workers: number of processes that load batches in advance, as in DataLoader.
    """
    device = next(model.parameters()).device
    names = tuple(metrics or ())
    samples = _Samples(dataset, device, collate_fn, num_workers)
    test = _Samples(eval_dataset if eval_dataset is not None else dataset, device, collate_fn, 0)
    n_test = test.n if eval_dataset is not None else min(test.n, _EVAL_OF_TRAINING)
    data = Data(samples.n, n_test, _dataset_id(
        model, samples.n, n_test, dataset_id, type(dataset).__name__))
    with tempfile.TemporaryDirectory(prefix="cnnps-") as directory:
        shared: Optional[Shared] = None
        if isinstance(server, Server):
            server = server.endpoint
        server = server or os.environ.get("CNN_SERVER")
        if not server:
            place = os.environ.get("CNNPS_RUN_DIR", directory)
            file = os.path.join(place, f"init-{os.getpid()}.safetensors")
            n = save_init(model, file)
            shared = Shared(model=f"vector:{n}", init=file, metrics=metric_names(names), **options)
        try:
            about = dict(data=data, name=name, key=key, device=str(device), metrics=names)
            client = shared.connect(**about) if shared else connect(server, **about)
            evaluations: List[Evaluation] = []
            if client:
                with client:
                    worker = _Trainer(client, model, loss, samples, test, metrics or {})
                    evaluations = worker.evaluations
                    worker.train(progress)
            report = Report(shared.result() if shared else {}, evaluations)
            if shared and shared.directory:
                load_parameters(model, shared.directory)
            model.eval()
            return report
        finally:
            if shared:
                shared.close()


def load_parameters(model: torch.nn.Module, checkpoint_dir: str) -> None:
    """Load the weights of the last checkpoint. The buffers of the model do not change."""
    with tempfile.TemporaryDirectory(prefix="cnnps-") as directory:
        file = os.path.join(directory, "final.safetensors")
        export(checkpoint_dir, file)
        tensors, _ = safetensors.load(file)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(tensors[name].copy()))

"""Trains on a Ray cluster. The server and the workers are actors of Ray.

    ray.init()
    model = ...
    cnnps.ray.train(model, loss, dataset, workers=8, epochs=3, batch_size=64, lr=0.01)

The server runs on the node of the caller. If a worker dies, Ray starts it again on any node with
room, which may be a node that the autoscaler adds. A worker that waits for a node does not delay
the other workers. The traffic is encrypted, with new keys for each run.
"""
import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import _arguments as check
from ._scratch import Scratch
from .client import metric_names
from .errors import Done, Error, UsageError
from .launched import check_init, for_training
from .programs import keygen
from .server import Server, check_options

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from .torch import Loss, Metric

_GRACE = 10  # maximum time from the return of the workers to the end of the server, in seconds
# A server that a signal kills this many times in a row, each time within _SHORT seconds of its
# start, is not started again.
_MAX_SHORT, _SHORT = 10, 60
_WORKER_KEYS = ("worker.key", "server.pub")


class _Server:
    """The actor of the server. After a crash of the server, this actor starts the server again.
    After a crash of the actor, Ray starts the actor again. The run continues from its checkpoint,
    at the same address."""

    def __init__(self, bind: str, options: Dict[str, Any]) -> None:
        self._bind, self._options = bind, options
        self._server: Optional[Server] = None

    def _start(self) -> Server:
        # The server is started here and not in __init__, because an exception of __init__ would
        # reach the caller only as the death of the actor.
        if self._server is None:
            self._server = Server(self._bind, **self._options)
        return self._server

    def endpoint(self) -> str:
        return self._start().endpoint

    def wait(self) -> Dict[str, Any]:
        server, short = self._start(), 0
        while True:
            began = time.monotonic()
            try:
                return server.wait()
            except Error:
                if (server.returncode() or 0) >= 0:
                    raise
                # a negative status: a signal killed the server
                short = short + 1 if time.monotonic() < began + _SHORT else 0
                if short >= _MAX_SHORT:
                    raise Error(f"signal {-(server.returncode() or 0)} killed the server "
                                f"{short} times in a row within {_SHORT} s of its start:\n"
                                f"{server.tail()}") from None
                time.sleep(0.1)
                server.restart()


class _Worker:
    def __init__(self, rank: int, workers: int, endpoint: str, keys: Dict[str, bytes]) -> None:
        self._directory = Scratch("cnnps-ray-")
        paths = [os.path.join(self._directory.name, name) for name in _WORKER_KEYS]
        for name, path in zip(_WORKER_KEYS, paths):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(keys[name])
        # Replace all variables about keys, because the environment of this node may name the keys
        # of another run.
        os.environ.update(CNN_SERVER=endpoint, RANK=str(rank), WORLD_SIZE=str(workers),
                          CNN_KEY=paths[0], CNN_SERVER_KEY=paths[1])

    def run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(Done):  # cnnps.connect() raises Done if the run has already ended
            work()


def _free_port(host: str) -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        port: int = s.getsockname()[1]
        return port


def _read_keys(server_key: str) -> Dict[str, bytes]:
    """Returns the contents of the key files that a worker needs. These files are beside the secret
    key of the server."""
    found = {}
    for name in _WORKER_KEYS:
        path = Path(server_key).parent / name
        try:
            found[name] = path.read_bytes()
        except OSError as why:
            raise UsageError(f"key={server_key}: the workers need {path}, which `cnn-ctl keygen` "
                             f"writes to the same directory: {why.strerror}") from None
    return found


def _check(workers: int, max_restarts: int, checkpoint_dir: Optional[str],
           options: Dict[str, Any]) -> None:
    """Checks arguments before anything starts."""
    check.whole("workers", workers, minimum=1)
    if "bind" in options:
        raise TypeError("bind: the run chooses the address of its server")
    if max_restarts < -1:
        raise UsageError(f"max_restarts={max_restarts}: expected -1 or more")
    check_options({"checkpoint_dir": checkpoint_dir, **options})


def run(work: Callable[[], None], *, workers: int, num_cpus: float = 1, num_gpus: float = 0,
        resources: Optional[Mapping[str, float]] = None, checkpoint_dir: Optional[str] = None,
        max_restarts: int = 1000, **options: Any) -> Dict[str, Any]:
    """Calls work() in each worker, and waits until the run ends. Returns the last line of output of
    cnn-ps, parsed.

    work() trains with cnnps.connect(), which finds the server by itself. An option that cnn-ps
    refuses raises UsageError. If the process or the node of a worker dies, work() runs again from
    its beginning in a new process. An exception in work() ends the run. `options` are the options
    of cnnps.Server. Ray reserves num_cpus, num_gpus and resources for each worker. checkpoint_dir:
    a directory on this node; None: a temporary directory. max_restarts: how often Ray may start
    each actor again; -1: without limit. If an actor dies after its last permitted restart, the run
    ends with an Error. By default, the run makes new keys. If the option `key` names the secret key
    of a server on this node, the run has the keys beside this file instead: every worker gets a
    copy of worker.key and server.pub.
    """
    _check(workers, max_restarts, checkpoint_dir, options)
    host = ray.util.get_node_ip_address()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    restarts = {"max_restarts": max_restarts, "max_task_retries": -1}
    with Scratch("cnnps-ray-") as directory:
        if options.get("key") is None:
            keygen(os.path.join(directory, "keys"))
            options["key"] = os.path.join(directory, "keys", "server.key")
        keys = _read_keys(os.path.abspath(options["key"]))
        actors: List[Any] = []
        try:
            server = ray.remote(_Server).options(scheduling_strategy=here, **restarts).remote(
                f"tcp://{host}:{_free_port(host)}",
                {**options, "key": os.path.abspath(options["key"]),
                 "checkpoint_dir": checkpoint_dir or os.path.join(directory, "run")})
            actors.append(server)
            try:
                endpoint = ray.get(server.endpoint.remote())
            except ray.exceptions.RayTaskError as why:
                raise (why.cause if isinstance(why.cause, Error) else why) from None
            ended = server.wait.remote()
            running = {}
            for rank in range(workers):
                worker = ray.remote(_Worker).options(
                    num_cpus=num_cpus, num_gpus=num_gpus, resources=dict(resources or {}),
                    **restarts).remote(rank, workers, endpoint, keys)
                actors.append(worker)
                started = worker.__ray_ready__.remote()
                running[worker.run.remote(work)] = started
            return _wait(ended, running)
        except ray.exceptions.RayActorError as why:
            raise Error(f"an actor of the run has died, and max_restarts={max_restarts} permits no "
                        f"other start: {why}") from why
        finally:
            for actor in actors:
                ray.kill(actor)


def _wait(ended: Any, running: Dict[Any, Any]) -> Dict[str, Any]:
    """Waits until the run ends. Returns the last line of output of cnn-ps, parsed. `ended` and
    `running` have Ray references: `ended` is ready when the server has ended. `running` has an
    entry for each worker: the key is the reference of its call run(), and the value is a reference
    that is ready when the worker has a node."""
    while running:
        (one,), _ = ray.wait([ended, *running])
        if one == ended:
            break
        del running[one]
        ray.get(one)
    if not ray.wait([ended], timeout=_GRACE)[0]:
        raise Error("every worker has returned before the end of the run")
    result: Dict[str, Any] = ray.get(ended)
    started = [one for one, ready in running.items() if ray.wait([ready], timeout=0)[0]]
    if started:
        for one in ray.wait(started, num_returns=len(started), timeout=_GRACE)[0]:
            ray.get(one)
    return result


def train(model: "torch.nn.Module", loss: "Loss", dataset: "Dataset[Any]", *, workers: int,
          eval_dataset: "Optional[Dataset[Any]]" = None,
          metrics: "Optional[Mapping[str, Metric]]" = None, dataset_id: Optional[str] = None,
          num_workers: int = 0, collate_fn: Any = None, num_cpus: float = 1, num_gpus: float = 0,
          resources: Optional[Mapping[str, float]] = None, checkpoint_dir: Optional[str] = None,
          max_restarts: int = 1000, **options: Any) -> Dict[str, Any]:
    """Trains a model like cnnps.torch.train, on a Ray cluster. At the end the model has the final
    weights and statistics. With num_gpus, each worker trains on its own GPU."""
    from . import torch as ours
    check_init(options)
    options = for_training(options)
    _check(workers, max_restarts, checkpoint_dir, options)
    whole = ray.put((model, loss, dataset, eval_dataset, metrics, collate_fn))

    def work() -> None:
        model, loss, dataset, eval_dataset, metrics, collate_fn = ray.get(whole)
        if num_gpus:
            model.cuda()
        ours.train(model, loss, dataset, eval_dataset=eval_dataset, metrics=metrics,
                   dataset_id=dataset_id, num_workers=num_workers, collate_fn=collate_fn)

    with Scratch("cnnps-ray-") as directory:
        init = os.path.join(directory, "init.safetensors")
        text = ours.save_init(model, init)
        place = checkpoint_dir or os.path.join(directory, "run")
        result = run(work, workers=workers, num_cpus=num_cpus, num_gpus=num_gpus,
                     resources=resources, checkpoint_dir=place, max_restarts=max_restarts,
                     model=text, init=init,
                     metrics=metric_names(tuple(metrics or ())), **options)
        ours.load_parameters(model, place)
    return result

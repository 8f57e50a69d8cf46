"""Make one of the runs with Ray. The tests of cnnps.ray start this script with the Python of
build/tools.

  ray_script.py ledger DIRECTORY    three workers push the ledger gradient (see ledger_worker.py);
                                    they write their process ids to DIRECTORY
  ray_script.py torch DIRECTORY     two workers train a PyTorch model, and another one until --stop-at ends
                                    the run
  ray_script.py error DIRECTORY     a worker raises an exception, the process of a worker ends at
                                    each start, and a server is killed at each start
  ray_script.py nodes DIRECTORY     three workers, and a node with room for one of them; a second node
                                    joins the cluster and is removed
"""
import functools
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import ray

import cnnps
import cnnps.ray
from cnnps import safetensors
from cnnps.programs import export, keygen

SAMPLES, EPOCHS = 300, 2


def say(result):
    (directory / "result.json").write_text(json.dumps(result))


def ledger_worker(directory, at_least=1):
    """Pushes the ledger gradient. The worker holds its first batch until `at_least` workers have
    one, so that the run cannot end before."""
    rank = os.environ["RANK"]
    (directory / f"worker-{rank}").write_text(str(os.getpid()))
    with cnnps.connect(data=cnnps.Data(n_train=SAMPLES, xxh3=7)) as client:
        def gradient(weights, batch, out):
            out[:] = 0
            out[batch.epoch * SAMPLES + batch.indices[0]] = 1
            (directory / f"batch-{rank}").touch()
            while len(list(directory.glob("batch-*"))) < at_least:
                time.sleep(0.05)
            time.sleep(0.02)
            return 1.0
        cnnps.Worker(client, gradient).train()


def ledger(directory):
    result = cnnps.ray.run(
        functools.partial(ledger_worker, directory), workers=4, num_cpus=1,
        checkpoint_dir=str(directory / "run"), model=f"vector:{SAMPLES * EPOCHS}", epochs=EPOCHS,
        batch_size=1, optimizer="sgd", lr=1, lr_scaling="none", staleness_scaling="constant",
        max_staleness=1000000, warm_start_updates=0, checkpoint_ms=50)
    export(str(directory / "run"), str(directory / "end.safetensors"))
    weights = safetensors.load(str(directory / "end.safetensors"))[0]["vector"]
    say({**result, "wrong": int((weights != -1).sum())})


def train(directory):
    import torch
    import cnnps.torch
    x = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    model = torch.nn.Linear(20, 2)
    result = cnnps.ray.train(model, torch.nn.functional.cross_entropy, data, workers=2,
                             metrics={"accuracy": cnnps.torch.accuracy}, epochs=4, batch_size=10,
                             optimizer="adam", lr=0.02)
    own = (model(x).argmax(1) == data.tensors[1]).float().mean().item()
    rule = cnnps.ray.train(torch.nn.Linear(20, 2), torch.nn.functional.cross_entropy, data,
                           workers=2, metrics={"accuracy": cnnps.torch.accuracy}, epochs=1000,
                           batch_size=10, optimizer="adam", lr=0.02, stop_at="accuracy=0.7")
    say({**result, "own": own, "rule": rule})


def nodes(directory):
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    work = functools.partial(ledger_worker, directory, at_least=2)
    results = []
    run = threading.Thread(target=lambda: results.append(cnnps.ray.run(
        work, workers=3, model=f"vector:{SAMPLES * EPOCHS}", epochs=EPOCHS, batch_size=1,
        max_staleness=1000000)))
    run.start()
    for workers in (1, 2):
        while len(list(directory.glob("batch-*"))) < workers:
            time.sleep(0.05)
        if workers == 1:
            added = cluster.add_node(**NODE)
    cluster.remove_node(added)
    run.join()
    say(results[0])


def error(directory):
    def late():
        raise cnnps.Done("as connect() does after the end of the run")

    def work():
        with cnnps.connect(data=cnnps.Data(n_train=10)) as client:
            raise RuntimeError(f"as intended with {client.info.model}")
    keygen(str(directory / "keys"))
    # simulate a node on which environment variables name the keys of another run
    os.environ["CNN_SERVER_KEY"] = str(directory / "keys/worker.pub")
    worker = cnnps.ray._Worker(0, 1, "", cnnps.ray._read_keys(str(directory / "keys/server.key")))
    worker.run(late)
    assert Path(os.environ["CNN_SERVER_KEY"]).read_bytes() == (
        directory / "keys/server.pub").read_bytes()
    try:
        cnnps.ray.run(work, workers=1, model="vector:3", epochs=1,
                      key=str(directory / "keys/server.key"))
    except RuntimeError as why:
        reason = str(why)
    try:
        cnnps.ray.run(lambda: os._exit(1), workers=1, model="vector:3", max_restarts=1)
    except cnnps.Error as why:
        dies = str(why)
    refused = []
    for options in {"workers": 0}, {"workers": -1}, {"workers": 1.5}, {"bind": "tcp://*:1"}, {
            "checkpoint_dir": True}, {"metrics": ["f1"]}, {"max_restarts": -2}, {"lr": "fast"}:
        try:
            cnnps.ray.run(work, **{"workers": 1, "model": "vector:3", **options})
        except (TypeError, cnnps.UsageError) as why:
            refused.append(f"{type(why).__name__}: {why}")
    (directory / "keys/worker.key").unlink()
    try:
        cnnps.ray.run(work, workers=1, model="vector:3", key=str(directory / "keys/server.key"))
    except cnnps.UsageError as why:
        say({"why": reason, "no_key": str(why), "dies": dies, "refused": refused, **kill_always()})


def kill_always():
    """Kills the server after each of its starts. Returns the number of starts, and the error with
    which wait() gives up after the last of them."""
    class Killed(cnnps.Server):
        starts = 0

        def restart(self):
            super().restart()
            self.starts += 1
            self.kill()
    actor = cnnps.ray._Server.__new__(cnnps.ray._Server)
    actor._server = Killed(model="vector:3")
    try:
        actor.wait()
    except cnnps.Error as why:
        return {"starts": actor._server.starts, "killed": str(why).splitlines()[0]}


directory = Path(sys.argv[2])
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
if sys.argv[1] != "nodes":
    # The cluster has three processors, one for each worker. In the test with four workers the last
    # worker therefore never starts.
    ray.init(**{**NODE, "num_cpus": 3}, log_to_driver=False, _temp_dir=str(directory / "ray"))
{"ledger": ledger, "torch": train, "error": error, "nodes": nodes}[sys.argv[1]](directory)

"""Test cnnps.torch: it trains PyTorch models, and exports have the names of their tensors."""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.build import command, needs
from support.programs import Process, until

torch = needs("torch", "deploy/setup.sh")
import cnnps  # noqa: E402
import cnnps.torch  # noqa: E402
from cnnps import safetensors  # noqa: E402
from cnnps.programs import keygen  # noqa: E402

SCRIPT = Path(__file__).with_name("torch_script.py")


class Net(torch.nn.Module):
    """A model with BatchNorm, a buffer of integers, and a tensor with two names."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(20, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.last = torch.nn.Linear(32, 32)
        self.tied = torch.nn.Linear(32, 32)
        self.tied.weight = self.last.weight
        self.register_buffer("table", torch.arange(5))

    def forward(self, x):
        return self.tied(torch.relu(self.last(torch.relu(self.norm(self.first(x))))))[:, :2]


def samples(n=1000, seed=0):
    x = torch.randn(n, 20, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, (x[:, :3].sum(1) > 0).long())


CE = torch.nn.functional.cross_entropy


@pytest.mark.parametrize("options", [
    {"optimizer": "adam", "lr": 0.01}, {"mode": "sync", "lr": 0.1}, {"mode": "easgd", "n_push": 2}],
    ids=str)
def test_model_learns_and_gets_the_final_weights(tmp_path, options):
    torch.manual_seed(1)
    model, test = Net(), samples(400, 5)
    report = cnnps.torch.train(
        model, CE, samples(), eval_dataset=test, metrics={"accuracy": cnnps.torch.accuracy},
        epochs=6, batch_size=20, **options)
    assert report.result["images_per_epoch"] == [1000] * 6
    assert report.result["accuracy"] > 0.85
    assert report.evaluations[-1].metrics["accuracy"] == pytest.approx(report.result["accuracy"])
    assert report.evaluations[-1].loss == pytest.approx(report.result["loss"], rel=1e-4)
    own = (model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean()
    # the accuracy is the same only if the model also has the BatchNorm statistics of the run
    assert abs(own - report.result["accuracy"]) < 1.5 / 400
    cnnps.torch.save(model, str(tmp_path / "m.safetensors"))
    other = Net()
    cnnps.torch.load(other, str(tmp_path / "m.safetensors"))
    assert all((a == b).all() for a, b in zip(model.state_dict().values(),
                                              other.state_dict().values()))


@pytest.mark.parametrize("rule", [{"stop_at": "accuracy=0.7"}, {"patience_epochs": 1}], ids=str)
def test_a_run_that_its_rule_ends_is_complete(tmp_path, rule):
    """After train(), the model has the weights of the last checkpoint. A second call of train()
    finds that the run has ended."""
    model, test, run = torch.nn.Linear(20, 2), samples(200, 5), str(tmp_path / "run")
    options = dict(eval_dataset=test, metrics={"accuracy": cnnps.torch.accuracy}, epochs=1000,
                   batch_size=50, optimizer="adam", lr=0.01, checkpoint_dir=run, **rule)
    report = cnnps.torch.train(model, CE, samples(200), **options)
    assert report.result["status"] == "drained" and report.result["images_per_epoch"][-1] == 0
    assert report.result["stop_rule"]
    again = torch.nn.Linear(20, 2)
    assert cnnps.torch.train(again, CE, samples(200), **options).result["status"] == "drained"
    cnnps.programs.export(run, str(tmp_path / "w"))
    exported = safetensors.load(str(tmp_path / "w"))[0]
    for one in model, again:
        assert torch.equal(one.weight, torch.from_numpy(exported["weight"].copy()))


def test_a_run_that_an_administrator_drains_is_not_complete(server, tmp_path):
    model = torch.nn.Linear(20, 2)
    text = cnnps.torch.save_init(model, str(tmp_path / "init"))
    run = server(model=text, init=str(tmp_path / "init"), epochs=1000, metrics="none")

    def loss(output, target):
        if not loss.drained:
            with run.connect(observer=True) as client:
                client.drain()
            loss.drained = True
        return CE(output, target)
    loss.drained = False
    with pytest.raises(cnnps.ShutdownError):
        cnnps.torch.train(model, loss, samples(200), server=run)
    assert run.wait(20)["status"] == "drained"


def test_epochs_have_a_default():
    """With --epochs 0, which cnn-ps has by default for a vector, the workers would get no work."""
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(20), batch_size=10, epochs=None)
    assert report.result["images_per_epoch"] == [20] * 3
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(20), batch_size=10,
                               max_updates=3)
    assert report.result["updates"] == 3
    for options in {"epochs": 0}, {"epochs": 0, "max_updates": 100}, {"epochs": "0"}:
        with pytest.raises(cnnps.UsageError, match="epochs=0: train.. needs at least 1 epoch"):
            cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(20), **options)


def test_a_server_without_epochs_cannot_train_a_model(server, tmp_path):
    model = torch.nn.Linear(20, 2)
    text = cnnps.torch.save_init(model, str(tmp_path / "init"))
    run = server(model=text, init=str(tmp_path / "init"))
    for named in run, run.endpoint:
        with pytest.raises(cnnps.UsageError, match="no data set .--epochs 0."):
            cnnps.torch.train(model, CE, samples(20), server=named)


def test_training_needs_checkpoints(server, tmp_path):
    """train() reads the final weights from the last checkpoint."""
    model = torch.nn.Linear(20, 2)
    for options in {"checkpoint_dir": False}, {"checkpoint_dir": ""}:
        with pytest.raises(cnnps.UsageError, match="checkpoint_dir=.*final weights"):
            cnnps.torch.train(model, CE, samples(20), epochs=1, **options)
    text = cnnps.torch.save_init(model, str(tmp_path / "init"))
    run = server(model=text, init=str(tmp_path / "init"), epochs=1, metrics="none",
                 checkpoint_dir=False)
    with pytest.raises(cnnps.UsageError, match="checkpoint_dir=.*final weights"):
        cnnps.torch.train(model, CE, samples(20), server=run)


def test_a_worker_that_starts_after_a_drain_reports_it(server, tmp_path, monkeypatch):
    """The server ends before the worker connects."""
    model = torch.nn.Linear(20, 2)
    text = cnnps.torch.save_init(model, str(tmp_path / "init"))
    options = dict(model=text, init=str(tmp_path / "init"), epochs=1000, batch_size=50)
    shared = cnnps.torch.Shared

    def late(run):
        """Returns what train() uses, as in a worker that connects after the end of the run."""
        found = shared(run)
        with run.connect(observer=True) as client:
            client.drain()
        run.wait(20)
        return found
    monkeypatch.setattr(cnnps.torch, "Shared", late)
    with pytest.raises(cnnps.ShutdownError, match="drained before the end"):
        cnnps.torch.train(model, CE, samples(200), server=server(**options))


def test_export_has_the_names_of_the_state_dict(server, tmp_path):
    """An export must have the names, shapes and constant tensors of the file that was given with
    --init, and the weights of the run."""
    model = Net()
    text = cnnps.torch.save_init(model, str(tmp_path / "init.safetensors"))
    n = sum(p.numel() for p in model.parameters())
    assert text == f"vector:{n + 64}:running=64"
    run = server(model=text, init=str(tmp_path / "init.safetensors"), optimizer="sgd",
                 lr=1, lr_scaling="none", checkpoint_dir=str(tmp_path / "run"))
    with run.connect() as client:
        assert (client.info.n_params, client.info.n_trained) == (n + 64, n)
        assert (client.pull()[:n] == torch.nn.utils.parameters_to_vector(
            model.parameters()).detach().numpy()).all()
        client.push(np.full(n + 64, 5, np.float32))
        assert client.flush()
    run.restart()  # a restart must not lose the names
    run.export(str(tmp_path / "out.safetensors"))
    subprocess.run(command("cnn-ctl", "--server", run.endpoint, "export",
                           tmp_path / "live.safetensors"), check=True, timeout=20)
    assert (tmp_path / "live.safetensors").read_bytes() == (
        tmp_path / "out.safetensors").read_bytes()
    tensors, _ = safetensors.load(str(tmp_path / "out.safetensors"))
    assert tensors["table"].tolist() == [0, 1, 2, 3, 4] and tensors["table"].dtype == np.int64
    other = Net()
    other.load_state_dict({name: torch.from_numpy(t.copy()) for name, t in tensors.items()},
                          strict=True)
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(p - 5, q), name
    # one update has moved the mean from 0 by a tenth of the way to 5
    assert torch.allclose(other.norm.running_mean, torch.tensor(0.5))
    assert torch.allclose(other.norm.running_var, torch.tensor(1.4))
    assert other.tied.weight is other.last.weight


class Normed(torch.nn.Module):
    """A model whose BatchNorm statistics depend only on the inputs, because no trained layer
    precedes BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(20)
        self.last = torch.nn.Linear(20, 2)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.last(self.norm(x)) * self.scale


@pytest.mark.parametrize("options", [
    {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.1, "weight_decay": 0.1},
    {"n_push": 2, "n_fetch": 4, "push": "sum", "lr": 0.1}, {"delay_compensation": "constant"},
    {"mode": "sync", "lr": 0.1}, {"mode": "easgd", "n_push": 3, "momentum": 0.9}], ids=str)
def test_statistics_of_batchnorm_are_the_runs(tmp_path, options):
    """No optimizer changes the statistics: they are the mean and the variance of the inputs."""
    x = 3 * torch.randn(1000, 20, generator=torch.Generator().manual_seed(0)) + 5
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 5).long())
    model = Normed()
    report = cnnps.torch.train(
        model, CE, data, eval_dataset=data, metrics={"accuracy": cnnps.torch.accuracy}, epochs=2,
        batch_size=20, checkpoint_dir=str(tmp_path / "run"), **options)
    assert model.norm.momentum == 0.1
    from cnnps.programs import export
    export(str(tmp_path / "run"), str(tmp_path / "out.safetensors"))
    other = Normed()
    cnnps.torch.load(other, str(tmp_path / "out.safetensors"))
    for trained in model, other:
        assert torch.allclose(trained.norm.running_mean, torch.tensor(5.0), atol=1)
        assert torch.allclose(trained.norm.running_var, torch.tensor(9.0), atol=4)
        assert float(trained.scale) == 2 and float(trained.mask[1]) == -float("inf")
        trained.eval()
        own = (trained(x).argmax(1) == data.tensors[1]).float().mean()
        assert abs(own - report.result["accuracy"]) < 2.5 / 1000


@pytest.mark.parametrize("damage, why", [
    (lambda h: h["first.bias"].update(dtype="F16"), "first.bias"),
    (lambda h: h["first.bias"].update(data_offsets=[0, 132]), "first.bias"),
    (lambda h: h["first.bias"].update(data_offsets=[0, 1 << 60]), "first.bias"),
    (lambda h: h.pop("first.bias"), "first.bias"),
    (lambda h: h["__metadata__"].update(tensor_list="a F32 3\n"), "list of tensors"),
    (lambda h: h.pop("__metadata__") and h.update({"a b": 3}), "list of tensors"),
    (lambda h: h.pop("__metadata__") and h.update(extra=h["first.bias"]), "number of values")],
    ids=range(7))
def test_init_file_that_does_not_fit_is_refused(tmp_path, damage, why):
    file = tmp_path / "init.safetensors"
    model = cnnps.torch.save_init(Net(), str(file))
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    damage(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    done = subprocess.run(command("cnn-ps", "--model", model, "--init", file, "--bind",
                                  "tcp://127.0.0.1:0"), capture_output=True, text=True, timeout=20)
    assert done.returncode == 6 and why in done.stderr, (done.returncode, done.stderr)


def test_optimizer_of_a_loop_of_ones_own(server, tmp_path):
    torch.manual_seed(1)
    model, data = Net(), samples(200)
    text = cnnps.torch.save_init(model, str(tmp_path / "init.safetensors"))
    run = server(model=text, init=str(tmp_path / "init.safetensors"), optimizer="adam",
                 lr=0.01, epochs=3, batch_size=20)
    other = Net()
    losses = []
    with run.connect(data=cnnps.Data(n_train=200)) as client:
        optimizer = cnnps.torch.AsyncOptimizer(other, client)
        assert torch.equal(other.first.weight, model.first.weight)
        for lease in client.leases():
            if lease.is_eval:
                client.result(lease, 0, losses[-1])
                continue
            for batch in lease.batches():
                x, y = (t[batch.indices] for t in data.tensors)
                optimizer.zero_grad()
                loss = CE(other(x), y)
                loss.backward()
                losses.append(loss.item())
                optimizer.step(batch, loss.item())
    assert len(losses) == 30 and np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert other.norm.running_mean.abs().min() > 0 and other.norm.momentum == 1
    with server(model="vector:3").connect() as client:
        for of in other, other.parameters():
            with pytest.raises(cnnps.UsageError, match="the run's model has 3 parameters"):
                cnnps.torch.AsyncOptimizer(of, client)


@pytest.mark.parametrize("options, why", [
    ({"mode": "easgd"}, "mode easgd"), ({"mode": "sync"}, "mode sync"),
    ({"mode": "sandblaster", "optimizer": "sgd"}, "mode sandblaster"), ({"n_push": 2}, "n_push 2"),
    ({"n_fetch": 3, "mode": "ssp"}, "n_fetch 3")], ids=str)
def test_optimizer_refuses_a_run_whose_gradients_it_would_push_wrongly(server, options, why):
    model = torch.nn.BatchNorm1d(3, dtype=torch.float32)
    run = server(model="vector:12:running=6", epochs=1, checkpoint_dir=False, **options)
    with run.connect(data=cnnps.Data(n_train=200)) as client:
        with pytest.raises(cnnps.UsageError, match=f"AsyncOptimizer: the run has {why}"):
            cnnps.torch.AsyncOptimizer(model, client)
    assert model.momentum == 0.1


@pytest.mark.parametrize("options", [
    {"prefetch": True}, {"mode": "ssp", "epochs": 1}, {"push": "sum"}], ids=str)
def test_optimizer_pushes_the_gradient_and_pulls(server, options):
    model = torch.nn.Linear(2, 1, bias=False)
    run = server(model="vector:2", optimizer="sgd", lr=1, lr_scaling="none", warm_start_updates=0,
                 checkpoint_dir=False, **options)
    with run.connect(data=cnnps.Data(n_train=200)) as client:
        optimizer = cnnps.torch.AsyncOptimizer(model.parameters(), client)
        batch = next(client.lease().batches()) if client.info.epochs else None
        model.weight.grad = torch.tensor([[1.0, -2.0]])
        if batch:
            with pytest.raises(cnnps.UsageError, match=r"batch is missing.*lease.batches\(\)"):
                optimizer.step()
        optimizer.step(batch)
        assert model.weight.tolist() == [[-1, 2]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_are_held_back_are_the_test_samples(num_workers):
    torch.manual_seed(1)
    model, data = torch.nn.Linear(20, 2), samples(300)
    report = cnnps.torch.train(model, CE, data, epochs=2, batch_size=20, validate=100, lr=0.1,
                               metrics={"accuracy": cnnps.torch.accuracy}, num_workers=num_workers)
    assert report.result["images_per_epoch"] == [200, 200]
    assert report.evaluations[-1].samples == 100
    from cnnps.order import held_back
    x, y = (t[held_back(300, 100)] for t in data.tensors)
    own = (model(x).argmax(1) == y).float().mean()
    assert abs(own - report.result["accuracy"]) < 1.5 / 100


def test_workers_of_dataloader_fork_beside_the_connection():
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(100), epochs=1, batch_size=25,
                               num_workers=2)
    assert report.result["images"] == 100


def test_workers_give_the_names_of_their_model(server, tmp_path):
    """A run without names takes the list of names of the first worker that sends one. After that,
    the server refuses a worker with another list."""
    model = Net()
    cnnps.torch.save_init(model, str(tmp_path / "init.safetensors"))
    n = sum(p.numel() for p in model.parameters()) + 64
    run = server(model=f"vector:{n}:running=64", checkpoint_dir=str(tmp_path / "run"))
    names = cnnps.torch.tensor_list(model)
    with run.connect() as client:  # this client sends no names
        client.flush()
    with run.connect(tensors=names):
        pass
    with pytest.raises(cnnps.WrongDataError, match="line 1.*another tensor"):
        run.connect(tensors=names.replace("first.weight", "second.weight"))
    with pytest.raises(cnnps.WrongDataError, match="line 1.*malformed"):
        run.connect(tensors="first.weight\n")
    run.restart()
    run.export(str(tmp_path / "out.safetensors"))
    tensors, _ = safetensors.load(str(tmp_path / "out.safetensors"))
    Net().load_state_dict({name: torch.from_numpy(t.copy()) for name, t in tensors.items()},
                          strict=True)


def test_models_that_no_list_can_describe_train_without_names(tmp_path, caplog):
    model = torch.nn.ModuleDict({"a b": torch.nn.Linear(20, 2)})
    assert cnnps.torch.tensor_list(model) == "" and "unusual name" in caplog.text
    cnnps.torch.save_init(model, str(tmp_path / "init.safetensors"))
    other = torch.nn.ModuleDict({"a b": torch.nn.Linear(20, 2)})
    cnnps.torch.load(other, str(tmp_path / "init.safetensors"))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))
    large = torch.nn.Linear(2, 2)
    large.register_buffer("large", torch.zeros(2000, dtype=torch.int64))
    assert cnnps.torch.tensor_list(large) == "weight F32 2x2\nbias F32 2\n"
    assert "do not contain the buffer large" in caplog.text


def test_other_model_or_data_is_refused(server, tmp_path):
    model = Net()
    text = cnnps.torch.save_init(model, str(tmp_path / "init.safetensors"))
    run = server(model=text, init=str(tmp_path / "init.safetensors"), epochs=1,
                 batch_size=50, metrics="none")
    cnnps.torch.train(model, CE, samples(100), dataset_id="a", server=run)
    run = server(model=text, init=str(tmp_path / "init.safetensors"), epochs=2,
                 batch_size=50, data_id="0000000000000001", metrics="none")
    with pytest.raises(cnnps.WrongDataError):
        cnnps.torch.train(model, CE, samples(100), dataset_id="b", server=run)


def distance(output, target):
    return (output.softmax(1)[:, 1] - target).abs().sum()


@pytest.mark.parametrize("metrics", [
    {"distance": distance}, {"distance": distance, "accuracy": cnnps.torch.accuracy}])
def test_server_reports_named_metrics(metrics):
    model = torch.nn.Linear(20, 2)
    test = samples(300, 1)
    report = cnnps.torch.train(model, CE, samples(200), eval_dataset=test, metrics=metrics,
                               epochs=2, batch_size=20, lr=0.1)
    own = report.evaluations[-1].metrics
    assert report.result["metrics"] == {"distance": pytest.approx(own["distance"])}
    x, y = test.tensors
    assert own["distance"] == pytest.approx(float(distance(model(x), y)) / 300, rel=1e-4)
    assert report.result["accuracy"] == (
        pytest.approx(own["accuracy"]) if "accuracy" in metrics else None)


def test_a_metric_without_a_value_does_not_end_the_run(caplog):
    """A metric may be NaN, for example the F1 of a class without samples. train() then logs a
    warning and continues."""
    report = cnnps.torch.train(
        torch.nn.Linear(20, 2), CE, samples(600), eval_dataset=samples(300, 1), epochs=2,
        batch_size=20, metrics={"f1": lambda output, target: torch.tensor(float("nan")),
                                "accuracy": lambda output, target: float("inf")})
    assert report.result["status"] == "done" and report.result["metrics"] == {"f1": 0}
    assert report.evaluations[-1].metrics == {"f1": 0, "accuracy": 0}
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [s for s in lines if "metric f1 is nan" in s and "counts as 0" in s], lines
    assert sum("metric" in s for s in lines) == 2, lines


def test_other_metrics_are_refused(server):
    with server(model="vector:42", epochs=1, batch_size=50, metrics="bits") as run:
        with pytest.raises(cnnps.WrongDataError, match='metrics "none", but the run has "bits"'):
            cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(100), server=run)


LAUNCH = 90  # maximum seconds for a line: on a busy machine workers load PyTorch for half a minute


def launch(programs, *arguments, **env):
    return programs.add(Process("cnnps.run", [
        sys.executable, "-m", "cnnps.run", *map(str, arguments)],
        env={"PYTHONPATH": cnnps.__path__[0] + "/..", **env}))


def test_launcher_trains_with_four_workers(programs, tmp_path):
    """Environment variables name the server and the keys of another run, which the launcher must
    ignore."""
    run = launch(programs, "--workers", 4, "--dir", tmp_path / "run", "--epochs=4", SCRIPT,
                 "0", tmp_path, CNN_SERVER="tcp://127.0.0.1:1", CNN_KEY="/nowhere",
                 CNN_SERVER_KEY="/nowhere")
    assert run.wait(120) == 0, run.tail()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoints", "result.json"]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["images_per_epoch"] == [1000] * 4 and result["accuracy"] > 0.8
    assert sorted(p.name for p in tmp_path.glob("rank-*")) == [f"rank-{i}" for i in range(4)]


@pytest.mark.parametrize("options, key", [
    ([], "server"), (["--key=keys/server.key"], "worker")], ids=["script", "command line"])
def test_launcher_starts_a_server_with_keys(programs, tmp_path, options, key):
    """The environment names keys of another run, which the launcher must ignore."""
    keygen(str(tmp_path / "keys"))
    options = [option.replace("keys", str(tmp_path / "keys")) for option in options]
    run = launch(programs, "--workers", 2, "--dir", tmp_path / "run", "--epochs=1",
                 "--bind=tcp://0.0.0.0:0", *options, SCRIPT, "0", tmp_path,
                 tmp_path / f"keys/{key}.key", CNN_KEY="/nowhere")
    assert run.wait(120) == 0, run.tail()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["images_per_epoch"] == [1000]


def test_launcher_succeeds_if_the_rule_of_the_run_ends_it(programs, tmp_path):
    run = launch(programs, "--workers", 2, "--dir", tmp_path / "run", "--epochs=1000",
                 "--stop-at=accuracy=0.7", SCRIPT, "0", tmp_path)
    assert run.wait(120) == 0, run.tail()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoints", "result.json"]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "drained" and result["accuracy"] >= 0.7


def test_launcher_replaces_a_killed_worker_and_a_killed_server(programs, tmp_path):
    run = launch(programs, "--workers", 3, "--dir", tmp_path / "run", SCRIPT, "0.01", tmp_path)
    server = int(run.line(r"server \S+, process (\d+)", LAUNCH)[1])
    until(lambda: len(list(tmp_path.glob("rank-*"))) == 3, 60, "all workers run")
    import os
    import signal
    os.kill(int((tmp_path / "rank-1").read_text()), signal.SIGKILL)
    run.line("worker 1 ended with status -9; starting it again", LAUNCH)
    os.kill(server, signal.SIGKILL)
    run.line("the server ended with status -9; starting it again", LAUNCH)
    assert run.wait(120) == 0, run.tail()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["images_per_epoch"] == [1000] * 3 and result["term"] == 2


# makes the connection that train() makes first, but without the seconds that `import torch` takes
BEGIN = """
from cnnps import Data
from cnnps.launched import Shared
client = Shared(model="vector:3").connect(data=Data(10))
"""


def test_launcher_stops_when_workers_keep_failing(programs, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(f"{BEGIN}raise SystemExit(7)\n")
    run = launch(programs, "--workers", 2, "--max-restarts", 2, script)
    assert run.wait(60) == 1, run.tail()
    run.line("ended with status 7; no restart is left", LAUNCH)
    assert sum("starting it again" in line for line in run.lines) == 2


def test_launcher_starts_a_script_once_that_fails_before_training(programs, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import no_such_module\n")
    for arguments in ([script], ["-m", "no_such_module"]):
        run = launch(programs, "--workers", 1, *arguments)
        assert run.wait(60) == 1, run.tail()
        run.line("worker 0 ended with status 1 before it called train", LAUNCH)
        assert not any("starting it again" in line for line in run.lines)


@pytest.mark.parametrize("arguments, text", [
    (["--max-restarts", "-1", SCRIPT], "--max-restarts -1: at least 0"),
    (["--max-restarts", "many", SCRIPT], "invalid int value"),
    (["--workers", "0", SCRIPT], "--workers 0: at least 1"),
    (["/nowhere/train.py"], "/nowhere/train.py: no such script"),
    (["--lr", "0.1", SCRIPT], "0.1: no such script .*--lr=0.1"),
    (["--workers", "2"], "required: script"), ([], "required: script"),
    (["--dir", SCRIPT, SCRIPT], "--dir: .*torch_script.py"),
    (["--dir", "/proc/nowhere", SCRIPT], "--dir: .*/proc/nowhere")], ids=str)
def test_launcher_refuses_wrong_usage(capsys, arguments, text):
    import signal
    from cnnps import run
    handler = signal.getsignal(signal.SIGTERM)
    try:
        status = run.main(list(map(str, arguments)))
    except SystemExit as end:
        status = end.code
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert status == 2 and re.search(text, capsys.readouterr().err)


def test_launcher_takes_options_that_are_on_or_off():
    from cnnps import run
    words = ["--prefetch", "--workers", "3", "--no-insecure", "--accept-rollback=true",
             "--check-config=False", "--lr=0.1", "--run-name=", str(SCRIPT), "--no-x", "--y=true"]
    options, overrides = run.parse(words)
    assert (options.workers, options.script) == (3, str(SCRIPT))
    assert options.arguments == ["--no-x", "--y=true"]
    assert overrides == {"prefetch": True, "insecure": False, "accept_rollback": True,
                         "check_config": False, "lr": "0.1", "run_name": ""}


def test_launcher_starts_a_server_with_an_option_that_is_on(programs, tmp_path):
    run = launch(programs, "--workers", 1, "--dir", tmp_path / "run", "--prefetch", "--epochs=1",
                 SCRIPT, "0", tmp_path)
    assert run.wait(100) == 0, run.tail()
    lines = [json.loads(s) for s in (tmp_path / "run/checkpoints/history.jsonl").open()]
    assert any(line.get("options", {}).get("prefetch") for line in lines)


def test_launcher_passes_the_words_after_the_script_on(programs, tmp_path):
    script = tmp_path / "prints.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    words = ["--workers", "5", "--lr=0.1", "-m", "--", "--dir=x", "--help"]
    run = launch(programs, "--workers", 1, "--lr=0.2", script, *words)
    assert run.wait(60) == 0, run.tail()
    assert run.out == [str(words)]


@pytest.mark.parametrize("number, status", [(2, 130), (15, 143)])
def test_launcher_stops_at_a_signal(programs, tmp_path, number, status):
    script = tmp_path / "waits.py"
    script.write_text(f"{BEGIN}import time\ntime.sleep(100)\n")
    run = launch(programs, "--workers", 1, "--dir", tmp_path / "run", script)
    until(lambda: (tmp_path / "run/address.json").exists(), 60, "the server runs")
    again = launch(programs, "--dir", tmp_path / "run", script)
    assert again.wait(60) == 2, again.tail()
    again.line("another cnnps.run uses this directory")
    run.popen.send_signal(number)
    assert run.wait(60) == status, run.tail()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_second_signal_kills_the_workers(programs, tmp_path):
    """The worker ignores the first signal. The launcher still deletes its own temporary files."""
    script = tmp_path / "waits.py"
    script.write_text("import pathlib, signal, time\nfor s in 2, 15:\n"
                      f"    signal.signal(s, signal.SIG_IGN)\n{BEGIN}"
                      f"pathlib.Path({str(tmp_path)!r}, 'up').touch()\ntime.sleep(100)\n")
    run = launch(programs, "--workers", 1, "--dir", tmp_path / "run", script)
    until(lambda: (tmp_path / "up").exists(), 60, "the worker ignores signals")
    begin = time.monotonic()
    for _ in range(3):
        run.popen.send_signal(2)
        time.sleep(0.5)
    assert run.wait(60) == 130, run.tail()
    # less than the 10 s that a worker has to end after one signal
    assert time.monotonic() - begin < 9
    assert "Traceback" not in run.tail()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("option, why", [
    ("--no-such-option=2", "--no-such-option: unknown option"),
    ("--checkpoint-dir=", "checkpoint_dir=''.*final weights"),
    ("--epochs=0", "epochs=0: train.. needs at least 1 epoch")])
def test_launcher_says_why_the_server_does_not_start(programs, tmp_path, option, why):
    run = launch(programs, "--workers", 2, option, SCRIPT, "0", tmp_path)
    assert run.wait(60) == 1, run.tail()
    run.line(why, LAUNCH)
    assert "Traceback" not in run.tail()


LATE = """
import os, pathlib, time
if os.environ["RANK"] == "1":
    while not (pathlib.Path(os.environ["CNNPS_RUN_DIR"]) / "result.json").exists():
        time.sleep(0.05)
"""


def test_worker_that_starts_after_the_run_gets_its_weights(programs, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(LATE + SCRIPT.read_text(encoding="utf-8")
                      + "torch.save(model.weight, directory / ('w' + os.environ['RANK']))\n")
    run = launch(programs, "--workers", 2, "--epochs=1", script, "0", tmp_path)
    assert run.wait(100) == 0, run.tail()  # a worker that did not detect the end would take 120 s
    assert torch.equal(torch.load(tmp_path / "w0"), torch.load(tmp_path / "w1"))


def test_launcher_fails_if_a_worker_fails_after_the_run(programs, tmp_path):
    """Before it fails, the script calls train() a second time. The package must refuse this call,
    which would only return the weights of the first run."""
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT.read_text(encoding="utf-8") + """
try:
    cnnps.torch.train(torch.nn.Linear(20, 2), loss, data, epochs=1)
except cnnps.UsageError as why:
    print("refused:", why)
raise SystemExit(7)
""")
    run = launch(programs, "--workers", 2, "--epochs=1", script, "0", tmp_path)
    assert run.wait(60) == 1, run.tail()
    run.line("ended with status 7 after the end of the run", LAUNCH)
    run.line("refused: one call of train()", LAUNCH)


def test_variables_of_the_programs_change_nothing(monkeypatch):
    monkeypatch.setenv("CNN_LR", "nonsense")
    monkeypatch.setenv("CNN_CHECKPOINT", "/nowhere")
    monkeypatch.setenv("CNN_KEY", "/nowhere")
    monkeypatch.setenv("CNN_SERVER_KEY", "/nowhere")
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(50), epochs=1, batch_size=25)
    assert report.result["images"] == 50


# ---- models and calls that are unusual -----------------------------------------------------------

def frozen():
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    for p in model[0].parameters():
        p.requires_grad_(False)
    return model


@pytest.mark.parametrize("options", [{"weight_decay": 0.5}, {"mode": "easgd", "n_push": 2}], ids=str)
def test_frozen_parameters_stay_as_they_are(tmp_path, options):
    model = frozen()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    cnnps.torch.train(model, CE, samples(200), epochs=2, batch_size=20, **options,
                      checkpoint_dir=str(tmp_path / "run"))
    cnnps.programs.export(str(tmp_path / "run"), str(tmp_path / "w"))
    exported = safetensors.load(str(tmp_path / "w"))[0]
    assert set(exported) == set(before)
    for name, t in model.state_dict().items():
        assert torch.equal(t, torch.from_numpy(exported[name].copy())), name
        assert torch.equal(t, before[name]) == name.startswith("0."), name


@pytest.mark.parametrize("model", [torch.nn.ReLU(), frozen()[0]], ids=["none", "frozen"])
def test_a_model_without_parameters_is_refused(model, tmp_path):
    with pytest.raises(cnnps.UsageError, match="no parameters to train"):
        cnnps.torch.train(model, CE, samples(10), epochs=1)
    with pytest.raises(cnnps.UsageError, match="no parameters to train"):
        cnnps.torch.save_init(model, str(tmp_path / "init"))
    assert not (tmp_path / "init").exists()


def test_train_with_a_server_of_this_process(server, tmp_path):
    """After train(), the model has the final weights, and the server has ended."""
    model = torch.nn.Linear(20, 2)
    text = cnnps.torch.save_init(model, str(tmp_path / "init"))
    run = server(model=text, init=str(tmp_path / "init"), epochs=1, batch_size=20, metrics="none")
    report = cnnps.torch.train(model, CE, samples(200), server=run)
    assert report.result["images"] == 200
    run.export(str(tmp_path / "w"))
    exported = safetensors.load(str(tmp_path / "w"))[0]
    assert torch.equal(model.weight, torch.from_numpy(exported["weight"].copy()))
    with pytest.raises(cnnps.UsageError, match="this server has ended"):
        cnnps.torch.train(model, CE, samples(200), server=run)


def test_parameters_that_are_not_float32(tmp_path):
    mixed = torch.nn.Sequential(torch.nn.Linear(20, 2), torch.nn.Linear(2, 2).bfloat16())
    for model, name in ((torch.nn.Linear(20, 2).bfloat16(), "weight is bfloat16"),
                        (torch.nn.Linear(20, 2).double(), "weight is float64"),
                        (mixed, "1.weight is bfloat16")):
        for call in (lambda m=model: cnnps.torch.train(m, CE, samples(20), epochs=1),
                     lambda m=model: cnnps.torch.save_init(m, str(tmp_path / "init"))):
            with pytest.raises(TypeError, match=f"{name}.*float32"):
                call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("metrics, kind, why", [
    (["accuracy"], TypeError, "metrics: expected .name: function., not list"),
    ({"accuracy": 5}, TypeError, "metrics: accuracy: expected a function, not int"),
    ({1: cnnps.torch.accuracy}, TypeError, "one is int"),
    ({"none": cnnps.torch.accuracy}, cnnps.UsageError, "metrics: none .* no metric")],
    ids=["list", "number", "name of a number", "name none"])
def test_metrics_of_the_wrong_kind(metrics, kind, why):
    with pytest.raises(kind, match=why):
        cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(20), metrics=metrics)


def test_train_makes_the_initial_weights():
    for options in {}, {"server": "tcp://127.0.0.1:1"}:
        with pytest.raises(TypeError, match="^init: train.. takes the initial weights from `model`"):
            cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(20), init="x", **options)


class Dicts(torch.utils.data.Dataset):
    """A data set whose samples are no tuples."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"x": torch.ones(20), "y": i % 2}


def test_samples_of_the_wrong_kind():
    def pairs(batch):
        return torch.stack([s["x"] for s in batch]), torch.tensor([s["y"] for s in batch])
    model = torch.nn.Linear(20, 2)
    for collate, found in [(None, "a batch is dict"), (lambda batch: torch.ones(20, 2), "is Tensor"),
                           (lambda batch: 5, "is int"), (lambda batch: ("a", "b"), "has a part str")]:
        with pytest.raises(TypeError, match=f"^dataset: .*{found}.*: expected .*collate_fn"):
            cnnps.torch.train(model, CE, Dicts(), epochs=1, collate_fn=collate)
    cnnps.torch.train(model, CE, Dicts(), epochs=1, collate_fn=pairs)


def test_optimizer_refuses_arguments_of_the_wrong_kind(server):
    model = torch.nn.Linear(2, 1, bias=False)
    with pytest.raises(TypeError, match="client: expected cnnps.Client, not int"):
        cnnps.torch.AsyncOptimizer(model.parameters(), 5)
    with server(model="vector:2").connect() as client:
        for wrong, found in [([{"params": model.parameters()}], "one is dict"),
                             (model.named_parameters(), "one is tuple"), (5, "int"),
                             (model.weight, "Parameter")]:
            with pytest.raises(TypeError, match=f"^parameters: .*{found}"):
                cnnps.torch.AsyncOptimizer(wrong, client)
        optimizer = cnnps.torch.AsyncOptimizer(model.parameters(), client)
        with pytest.raises(TypeError, match="the server has the learning rate.*schedule="):
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with pytest.raises(KeyError):
            optimizer.param_groups[0]["absent"]


def test_a_server_that_train_starts_has_keys(tmp_path):
    """`key` is the secret key of the server; the worker uses the keys beside this file."""
    keygen(str(tmp_path / "keys"))
    model, key = torch.nn.Linear(20, 2), tmp_path / "keys/server.key"
    options = {"epochs": 1, "lr": 0.1, "bind": "tcp://0.0.0.0:0"}
    report = cnnps.torch.train(model, CE, samples(100), key=str(key), **options)
    assert report.result["images_per_epoch"] == [100]
    with pytest.raises(cnnps.UsageError, match="worker.key: train.. starts the server.*server.key"):
        cnnps.torch.train(model, CE, samples(100), key=str(tmp_path / "keys/worker.key"), **options)
    key.rename(tmp_path / "server.key")
    with pytest.raises(cnnps.UsageError, match=f"needs {tmp_path}/worker.key"):
        cnnps.torch.train(model, CE, samples(100), key=str(tmp_path / "server.key"), **options)


@pytest.mark.parametrize("option", ["epochs", "evaldataset"])
def test_train_with_a_server_refuses_options_that_have_no_effect(option):
    with pytest.raises(TypeError, match=f"the server has its own: {option}"):
        cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(10), server="tcp://127.0.0.1:1",
                          **{option: 3})

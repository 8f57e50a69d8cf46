"""Test cnnps.torch: it trains PyTorch models, and exports have the names of their tensors."""
import json
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
    # the model must also have the run's BatchNorm statistics to reach the same accuracy
    assert abs(own - report.result["accuracy"]) < 1.5 / 400
    cnnps.torch.save(model, str(tmp_path / "m.safetensors"))
    other = Net()
    cnnps.torch.load(other, str(tmp_path / "m.safetensors"))
    assert all((a == b).all() for a, b in zip(model.state_dict().values(),
                                              other.state_dict().values()))


def test_export_has_the_names_of_the_state_dict(server, tmp_path):
    """An export has the names, shapes and constants of the file of --init, and the weights of the
    run."""
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
            with pytest.raises(ValueError, match="the run's 3"):
                cnnps.torch.AsyncOptimizer(of, client)


def test_workers_of_dataloader_fork_beside_the_connection():
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(100), epochs=1, batch_size=25,
                               num_workers=2)
    assert report.result["images"] == 100


def test_workers_give_the_names_of_their_model(server, tmp_path):
    """A run without names takes the list of names of the first worker that sends one. The server
    refuses another list."""
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


def test_other_metrics_are_refused(server):
    with server(model="vector:42", epochs=1, batch_size=50, metrics="bits") as run:
        with pytest.raises(cnnps.WrongDataError, match='metrics "none", but the run has "bits"'):
            cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(100), server=run)


def launch(programs, *arguments):
    return programs.add(Process("cnnps.run", [
        sys.executable, "-m", "cnnps.run", *map(str, arguments)],
        env={"PYTHONPATH": cnnps.__path__[0] + "/.."}))


def test_launcher_trains_with_four_workers(programs, tmp_path):
    run = launch(programs, "--workers", 4, "--dir", tmp_path / "run", "--epochs=4", SCRIPT,
                 "0", tmp_path)
    assert run.wait(120) == 0, run.tail()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["images_per_epoch"] == [1000] * 4 and result["accuracy"] > 0.8
    assert sorted(p.name for p in tmp_path.glob("rank-*")) == [f"rank-{i}" for i in range(4)]


def test_launcher_replaces_a_killed_worker_and_a_killed_server(programs, tmp_path):
    run = launch(programs, "--workers", 3, "--dir", tmp_path / "run", SCRIPT, "0.01", tmp_path)
    server = int(run.line(r"server \S+ process (\d+)".replace(" process", ", process"))[1])
    until(lambda: len(list(tmp_path.glob("rank-*"))) == 3, 60, "all workers run")
    import os
    import signal
    os.kill(int((tmp_path / "rank-1").read_text()), signal.SIGKILL)
    run.line("worker 1 ended with status -9; starting it again")
    os.kill(server, signal.SIGKILL)
    run.line("the server ended with status -9; starting it again")
    assert run.wait(120) == 0, run.tail()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["images_per_epoch"] == [1000] * 3 and result["term"] == 2


def test_launcher_stops_when_workers_keep_failing(programs, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    run = launch(programs, "--workers", 2, "--max-restarts", 2, script)
    assert run.wait(60) == 1, run.tail()
    run.line("ended with status 7; no restart is left")


def test_launcher_says_why_the_server_does_not_start(programs, tmp_path):
    run = launch(programs, "--workers", 2, "--no-such-option=2", SCRIPT, "0", tmp_path)
    assert run.wait(60) == 1, run.tail()
    run.line("--no-such-option: unknown option")
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
    begin = time.monotonic()
    run = launch(programs, "--workers", 2, "--epochs=1", script, "0", tmp_path)
    assert run.wait(60) == 0 and time.monotonic() < begin + 25, run.tail()
    assert torch.equal(torch.load(tmp_path / "w0"), torch.load(tmp_path / "w1"))


def test_launcher_fails_if_a_worker_fails_after_the_run(programs, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT.read_text(encoding="utf-8") + "raise SystemExit(7)\n")
    run = launch(programs, "--workers", 2, "--epochs=1", script, "0", tmp_path)
    assert run.wait(60) == 1, run.tail()
    run.line("ended with status 7 after the end of the run")


def test_variables_of_the_programs_change_nothing(monkeypatch):
    monkeypatch.setenv("CNN_LR", "nonsense")
    monkeypatch.setenv("CNN_CHECKPOINT", "/nowhere")
    report = cnnps.torch.train(torch.nn.Linear(20, 2), CE, samples(50), epochs=1, batch_size=25)
    assert report.result["images"] == 50

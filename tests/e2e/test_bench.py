"""Run the benchmarks that docs/ mentions, with the commands that a reader types."""
import importlib.machinery
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from support.build import PATIENCE, ROOT, needs
from support.programs import until

SLOW = bool(os.environ.get("CNN_SLOW"))


def bench(name, *arguments, data=None, path=None, seconds=60):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}
    env |= {"CNN_DATA": str(data)} if data else {}
    env |= {"PATH": str(path)} if path else {}
    return subprocess.run([sys.executable, ROOT / "tests/bench" / name, *map(str, arguments)],
                          cwd=ROOT, env=env, capture_output=True, text=True,
                          timeout=seconds * PATIENCE)


@pytest.mark.parametrize("name, options", [
    ("durability.py", ["--dir", "build/x"]), ("optimizers", []), ("science", ["--workers", "1"]),
    ("through_server.py", ["--device", "cpu"])])
def test_without_make_tests_a_benchmark_says_so_in_one_line(tmp_path, small, name, options):
    for part in ("bench", "gpu", "sim", "support"):
        shutil.copytree(ROOT / "tests" / part, tmp_path / "tests" / part)
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, tmp_path / "tests")
    env = dict(os.environ, CNN_DATA=str(small))
    done = subprocess.run([sys.executable, tmp_path / "tests/bench" / name, *options], env=env,
                          cwd=tmp_path, capture_output=True, text=True, timeout=30 * PATIENCE)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("fatal: not a git")]
    assert len(lines) == 1 and re.search(r"is not built: make FLAVOUR=\w+ tests$", lines[0])


def gpu_vs_torch():
    """Returns the script tests/bench/gpu_vs_torch as a module. The script imports PyTorch only when
    it measures."""
    path = str(ROOT / "tests/bench/gpu_vs_torch")
    loader = importlib.machinery.SourceFileLoader("gpu_vs_torch", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_vs_torch", loader))
    loader.exec_module(module)
    return module


def test_the_rows_of_gpu_vs_torch(capsys):
    bench = gpu_vs_torch()
    args = bench.parse(["--rows", "--rounds", "2"])
    assert len(args.races) == 15 and args.modes == "eager,graph,compile,compile+graph"
    assert args.rounds == 2 and not args.memory
    assert {r.rsplit(",", 1)[1] for r in args.races} == {"32", "100", "250", "1000"}
    assert bench.parse([]).races == bench.RACES and "compile," not in bench.parse([]).modes
    assert bench.parse(["--layers"]).races == ["128"]
    lenet = bench.parse(["--rows", "lenet5"]).races
    assert lenet == ["lenet5,32", "lenet5,250", "lenet5,1000"]
    for wrong, words in ((["--rows", "lenet5,100"], "expected one of example, "),
                         (["lenet5"], "expected NET,BATCH"),
                         (["lenet5,0"], "NET,BATCH"), (["--modes", "fast"], "expected some of eager"),
                         (["--rows", "--layers"], "exclude each other")):
        with pytest.raises(SystemExit):
            bench.parse(wrong)
        assert words in capsys.readouterr().err
    times = {"fp32 local": 10, "tf32 local": 5, "bf16 local": 4, "eager fp32": 40, "graph fp32": 20,
             "torch fp32": 20, "eager bf16": 3, "torch bf16": 3, "torch bf16-weights": 2}
    names = {"fp32": "graph contiguous", "bf16": "eager contiguous", "bf16-weights": "eager contiguous"}
    lines = list(bench.rows_table({("lenet5", 32): (names, times)}))
    assert len({line.count("|") for line in lines}) == 1
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["200", "", "75", "50"], lines


def test_the_operations_of_gpu_vs_torch_are_all_layers(monkeypatch, capsys):
    """lenet5 has layers whose channels or filters are not multiples of eight. resnet8 has equal
    layers, of which the table has one."""
    needs("torch", "python3-torch")
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    bench = gpu_vs_torch()
    measured = []

    def ours(batch, precision, layers):
        measured.append(layers)
        return [{"fprop_us": 1, "dgrad_us": 1, "wgrad_us": 1} for _ in layers]

    monkeypatch.setattr(bench, "our_operations", ours)
    monkeypatch.setattr(bench, "library_operations", lambda *_: [1, 1, 1])
    nets = ["lenet5,250", "resnet8,100", "conv:12:3 conv:12:3:groups=3 fc:10,100"]
    lines = list(bench.operations(bench.parse(["--operations", *nets])))
    assert len({line.count("|") for line in lines}) == 1
    assert measured[0] == ["1,28,6,5,2,1,1", "6,14,16,5,0,1,1", "400,1,120,1,0,1,1",
                           "120,1,84,1,0,1,1", "84,1,10,1,0,1,1"]
    assert sum("conv 16x32x32 to 16" in line for line in lines) == 1
    assert "left out: conv 12x26x26 to 12, 3x3, pad 0, 3 groups" in capsys.readouterr().err


def test_no_worker_of_a_peer_survives_the_measurement(tmp_path):
    """Each worker process that torchrun starts is in a Unix session of its own. The measurement may
    end while torchrun is starting a killed worker again. The new worker has not yet written its
    process id then, but the script must end this worker, too."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/bench/peers")!r})
import run
job = run.Job({str(tmp_path)!r})
agent = job.start("sh", "-c", "setsid sh -c 'echo $$; exec sleep 60'", stdout=run.subprocess.PIPE, text=True)
worker = int(agent.stdout.readline())
job.close()
print(worker)
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                          timeout=30 * PATIENCE)
    assert done.returncode == 0, done.stderr
    until(lambda: not os.path.exists(f"/proc/{int(done.stdout)}"), 5 * PATIENCE, "the worker's end")


@pytest.mark.parametrize("options", [
    ("--optimizer", "sgd", "--lr", "0.1"),
    ("--optimizer sgd --lr 0.1",),
    ("--", "--optimizer", "sgd", "--lr", "0.1"),
], ids=["bare", "quoted", "behind --"])
def test_optimizers_takes_the_options_of_a_row(small, options):
    done = bench("optimizers", "--workers", 1, "--seeds", 1, *options, data=small)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"\| `--optimizer sgd --lr 0.1` \| (\d+\.\d\d) to \1 \|", row)


def test_optimizers_makes_a_row_of_each_quoted_word(small):
    done = bench("optimizers", "--workers", 1, "--seeds", 1, "--optimizer sgd", "--lr 0.02",
                 data=small)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == ["`--optimizer sgd`", "`--lr 0.02`"]


def test_python_rate_compares_the_clients():
    done = bench("python_rate", "--programs", "c,python", "--rounds", 1, "--seconds", 0.1,
                 "--workers", 2, "--bytes", 26000)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^python,26000,2,[1-9]\d*,", done.stdout, re.M)
    assert re.search(r"^python / c, pairs: \d", done.stdout, re.M)


def test_python_rate_says_that_its_workers_failed():
    """The workers read CNN_KEY, which names a file that does not exist, so they fail. The script
    does not wait for the failed workers, and leaves no worker running."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/bench/python_rate", "--programs", "python", "--rounds", "1",
         "--seconds", "0.1", "--workers", "2", "--bytes", "26000"], cwd=ROOT, capture_output=True,
        text=True, timeout=50 * PATIENCE, env=dict(os.environ, CNN_KEY="/nowhere/worker.key"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "python_rate: python_worker: not all of 2 workers have begun"), done.stderr
    assert "/nowhere/worker.key" in done.stderr


def test_durability_makes_the_directory_that_it_is_given(tmp_path):
    done = bench("durability.py", "--dir", tmp_path / "new/er", "--seconds", 0.05,
                 "--pushes", 0.02)
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in done.stdout.splitlines()[1:]]
    assert [r[0] for r in rows] == 2 * ["disk new blocks", "disk old blocks", "none", "replay",
                                        "always"]
    assert all(float(r[2]) > 0 for r in rows)
    (tmp_path / "file").touch()
    refused = bench("durability.py", "--dir", tmp_path / "file")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


def test_a_checkpoint_during_pushes_has_the_bits_of_the_host(tmp_path):
    """The server's store module is a test double of the module for GPUs: it computes on the CPU
    (tests/device)."""
    done = bench("snapshots.py", "--program", "tests/device/cnn-ps", "--store", "cuda:0",
                 "--values", 20000, "--pushes", 200, "--interval-ms", 10, "--dir", tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [line.split(",") for line in done.stdout.splitlines()[1:3]]
    assert [r[0] for r in rows] == ["none", "on"]
    assert done.stdout.endswith("of host: equal\n")


def test_science_without_gnuplot_says_what_to_install(tmp_path):
    done = bench("science", "--draw", path=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        "--draw needs gnuplot: install gnuplot-nox (deploy/setup.sh bench does)")


@pytest.mark.parametrize("flood", ["hello", "http", "garbage", *(pytest.param(
    flood, marks=pytest.mark.skipif(not SLOW, reason="CNN_SLOW=1 takes every flood"))
    for flood in ("slots", "status", "revoked", "malformed", "chunks", "results", "requests",
                  "pages"))])
def test_floods_leaves_a_server_that_answers(flood):
    """Each flood is an example of attack A5 of docs/faults.md. In this test a flood lasts one
    second, and the workers may be arbitrarily slow."""
    done = bench("floods", "--floods", flood, "--seconds", 1, "--connections", 500, "--workers", 1,
                 seconds=120)
    assert done.returncode == 0, done.stderr
    row, end = done.stdout.splitlines()[2:]
    assert re.match(rf"\| {flood} \| [1-9]\d* \| [1-9]\d* \| [1-9]\d* \| \d+\.\d % \| \d+ "
                    r"\| \d+\.\d\d s \| ", row)
    assert end.startswith("missed: ") and "memory" not in end


def test_a_server_that_does_not_answer_after_a_flood_is_a_result(monkeypatch):
    """The script floods reports an infinite answer time for this server, and still prints its
    table."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    loader = importlib.machinery.SourceFileLoader("floods", str(ROOT / "tests/bench/floods"))
    floods = importlib.util.module_from_spec(importlib.util.spec_from_loader("floods", loader))
    loader.exec_module(floods)
    monkeypatch.setattr(floods, "AFTER_S", 0.2)
    monkeypatch.setattr(floods, "Worker", lambda *_, **__: MagicMock())
    monkeypatch.setattr(floods, "Keys", lambda *_: None)
    cluster = object.__new__(floods.Cluster)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster.endpoint, cluster.keys, cluster.http = "", ROOT, silent.getsockname()
        assert cluster.join() == float("inf")

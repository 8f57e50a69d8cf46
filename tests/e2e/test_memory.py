"""Compare the memory of a server in every mode: the formula of docs/cluster.md, the figure that
--check-config prints, and the peak of real runs."""
import re
import subprocess

import pytest

from support import idx
from support.build import FLAVOUR, FULL, ROOT, command
from support.programs import until

MODEL, PARAMETERS = "fc:1000 fc:10", 784 * 1000 + 1000 + 10010
W = 4 * PARAMETERS
MB = 1 << 20
WORKERS = 2
DC = ("--delay-compensation",)
# (options, a function from the number of workers to the number of vectors in docs/cluster.md)
MODES = {
    "downpour": ((), lambda n: 2),
    "downpour, sgd": (("--optimizer", "sgd"), lambda n: 1),
    "downpour, adam": (("--optimizer", "adam"), lambda n: 3),
    "downpour, prefetch": (("--prefetch",), lambda n: 2),
    "downpour, dc": ((*DC, "constant"), lambda n: 3 + 6 * n),
    "downpour, dc adaptive": ((*DC, "adaptive", "--prefetch"), lambda n: 4 + 6 * n),
    "downpour, buffer": (("--buffer-size", 4), lambda n: 5),
    "ssp": (("--mode", "ssp"), lambda n: 2),
    "sync": (("--mode", "sync"), lambda n: 3 + n),
    "easgd": (("--mode", "easgd"), lambda n: 1),
    "sandblaster, sgd": (("--mode", "sandblaster", "--optimizer", "sgd"), lambda n: 4),
    "sandblaster, lbfgs": (("--mode", "sandblaster"), lambda n: 4 + 3 + 40),
    "sandblaster, short history": (("--mode", "sandblaster", "--lbfgs-history", 3),
                                   lambda n: 4 + 3 + 6),
}
LEVELS = {"none": (), "replay": ("--checkpoint-ms", 20),
          "always": ("--checkpoint-ms", 20, "--durability", "always")}


def formula(vectors, level, push_window, workers, w=W):
    """Returns the memory in bytes by the formula of docs/cluster.md, "Limits"."""
    image = {"none": 0, "replay": 1.125, "always": 2.125}[level]
    ledgers = 4.2e6 + 16e3 * workers
    return (32 * MB + ledgers * (1 + image)
            + w * (vectors + image * (vectors + 1) + workers * (push_window + 6) + 2))


def check_config(tmp_path, *options):
    model = () if "--model" in options else ("--model", MODEL)
    done = subprocess.run(command("cnn-ps", "--check-config", *model, *options),
                          capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"memory_bytes=(\d+)", done.stdout)[1])


def peak(process):
    """Returns the peak of the resident memory of the server so far, without the memory that the
    server shares with workers: the kernel charges a shared page to the process that first writes to
    it, which is a worker. Call this function only while all workers are connected. After a worker
    has left, the peak still includes its shared memory, which the server no longer maps."""
    with open(f"/proc/{process.popen.pid}/status") as f:
        text = f.read()
    peak, shared = (1024 * int(re.search(rf"{name}:\s+(\d+) kB", text)[1])
                    for name in ("VmHWM", "RssShmem"))
    return peak - shared


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("few")
    idx.cut(data, directory, 400, 50)
    return directory


def options_of(mode, level, tmp_path):
    place = () if level == "none" else ("--checkpoint-dir", tmp_path / "ckpt")
    return (*MODES[mode][0], *LEVELS[level], *place, "--max-workers", WORKERS, "--push-window", 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
def test_check_config_prints_what_the_formula_says(tmp_path, mode, level):
    printed = check_config(tmp_path, *options_of(mode, level, tmp_path))
    expected = formula(MODES[mode][1](WORKERS), level, 2, WORKERS)
    assert 0.99 * expected <= printed <= expected
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("mode, named", [((), "downpour"), (("--mode", "sandblaster"), "L-BFGS")])
def test_the_examples_of_the_page_are_what_check_config_prints(tmp_path, mode, named):
    printed = check_config(tmp_path, "--model", "fc:1024 relu fc:10", "--max-workers", 2, *mode,
                           "--checkpoint-dir", tmp_path / "ckpt")
    text = " ".join((ROOT / "docs/cluster.md").read_text().split())
    figure = re.search(rf"(\d+) MiB for {named}", text)[1]
    assert int(figure) == round(printed / MB)
    vectors = MODES["downpour" if named == "downpour" else "sandblaster, lbfgs"][1](2)
    expected = formula(vectors, "replay", 8, 2, 3256360)
    assert 0.99 * expected <= printed <= expected


def updated(server, n):
    """Wait until the server has made `n` updates, and so has used every buffer."""
    until(lambda: server.status()["updates"] >= n, 90, f"{n} updates: {server.tail()}")


def cases():
    for mode, level in [*((mode, "replay") for mode in MODES), ("downpour", "none"),
                        ("downpour", "always"), ("sandblaster, lbfgs", "always"),
                        ("downpour, dc adaptive", "always")]:
        usual = (mode, level) in (("downpour", "always"), ("downpour, dc adaptive", "replay"),
                                  ("sync", "replay"), ("sandblaster, lbfgs", "replay"))
        yield pytest.param(mode, level, marks=[] if usual else [
            pytest.mark.skipif(not FULL, reason="CNN_SLOW=1 measures every mode")])


@pytest.mark.skipif(FLAVOUR != "release", reason="a sanitizer takes memory of its own")
@pytest.mark.parametrize("mode, level", cases())
def test_a_run_and_its_restart_stay_below(programs, tmp_path, few, mode, level):
    run = ("--epochs", 60000, "--batch-size", 80, "--warm-start-updates", 0)
    printed = check_config(tmp_path, *run, *options_of(mode, level, tmp_path))
    options = ("--model", MODEL, *run, *options_of(mode, "none", tmp_path), *LEVELS[level])
    server = programs.server(*options, directory=None if level == "none" else "ckpt")
    for _ in range(WORKERS):
        programs.worker(server.endpoint, data=few)
    updated(server, 30)
    peaks = [peak(server)]
    if level != "none":
        server.kill()
        server = programs.restart(server, *options)
        updated(server, 40)
        peaks.append(peak(server))
    assert max(peaks) <= printed, [f"{p / MB:.0f} MiB" for p in (*peaks, printed)]
    assert max(peaks) >= printed / 4, "the formula says nothing"


@pytest.mark.skipif(FLAVOUR != "release", reason="a sanitizer takes memory of its own")
@pytest.mark.parametrize("lane, wrap", [("auto", ()), ("tcp", ("env", "CNN_WIRE=bf16"))])
def test_workers_that_push_without_a_pause_stay_below(programs, tmp_path, lane, wrap):
    options = ("--model", f"vector:{PARAMETERS}", "--optimizer", "sgd", "--lr", 1,
               "--staleness-scaling", "constant", "--max-staleness", 10**9, "--max-workers", 3,
               "--lane", lane)
    printed = check_config(tmp_path, *options, "--checkpoint-dir", tmp_path / "ckpt")
    server = programs.server(*options)
    for i in range(3):
        # each worker has more pushes to make than the test waits for, so all workers stay connected
        programs.ledger_worker(server.endpoint, i, PARAMETERS // 3, wrap=wrap)
    updated(server, 300)
    assert peak(server) <= printed

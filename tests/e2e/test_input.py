"""Given invalid options or invalid data files, a program prints one clear line and exits with the
documented status.

The tests cover attacks A17, A18 and A19 of docs/faults.md.
"""
import gzip
import os
import re
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support import idx
from support.build import ROOT, command
from support.programs import Process

# pairs (command-line arguments that cnn-ps must refuse, a word that its error message must contain)
BAD_SERVER = [
    (["--lr", "nan"], "lr"),
    (["--lr", "inf"], "lr"),
    (["--lr", "-1"], "lr"),
    (["--lr", "0"], "lr"),
    (["--lr", ""], "lr"),
    (["--lr", "0.1x"], "lr"),
    (["--epochs", "-1"], "epochs"),
    (["--epochs", "three"], "epochs"),
    (["--epochs", "99999999999999999999"], "epochs"),
    (["--batch-size", "0"], "batch"),
    (["--batch-size", "1.5"], "batch"),
    (["--optimizer", "magic"], "optimizer"),
    (["--mode", "upside-down"], "mode"),
    (["--log-level", "shout"], "log-level"),
    (["--seed", "0x"], "seed"),
    (["--no-such-option"], "no-such-option"),
    (["--lr", "0.1", "--lr", "0.2"], "lr"),
    (["--lr"], "lr"),
    (["stray"], "stray"),
    (["--model", ""], "model"),
    (["--model", "blob:3"], "blob"),
    (["--model", "conv:32:99 fc:10"], "conv"),
    (["--model", "conv:8:3 pool:4 fc:10"], "pool"),
    (["--model", "fc:99999999999"], "fc"),
    (["--model", "vector:0"], "vector"),
    (["--model", "dropout:1.5 fc:10"], "dropout"),
    (["--bind", "tcp://127.0.0.1:70000"], "bind|endpoint|70000"),
    (["--bind", "nonsense"], "bind|endpoint|nonsense"),
    (["--http", "127.0.0.1:70000"], "http|70000"),
    (["--http", "nonsense"], "http|nonsense"),
    (["--http", "0.0.0.0:0"], "--http.*open to the network.*--http-token"),
    (["--http", "0.0.0.0:0", "--insecure"], "--http.*open to the network.*--http-token"),
    (["--checkpoint-dir", "/proc/no/such/dir"], "checkpoint-dir|/proc/no/such/dir"),
    (["--checkpoint-ms", "-5"], "checkpoint-ms"),
    (["--min-workers", "0"], "min-workers"),
    (["--data-id", ""], "data-id.*16 hex"),
    (["--data-id", "0123456789abcdeg"], "data-id.*16 hex"),
    (["--data-id", "0123456789abcdef:500"], "data-id.*16 hex.*training and test images"),
    (["--data-id", "0123456789abcdef:500:0"], "data-id.*16 hex"),
    (["--data-id", "0123456789abcdef:500:100:1"], "data-id.*16 hex"),
    (["--data-id", "0123456789abcdef:99999999999:1"], "data-id.*16 hex"),
]
BAD_WORKER = [
    (["--threads", "0"], "threads"),
    (["--threads", "many"], "threads"),
    (["--device", "abacus"], "device|abacus"),
    (["--server", ""], "server"),
    (["--server", "nonsense"], "server|endpoint|nonsense"),
    (["--server", "tcp://127.0.0.1:70000"], "server|endpoint|70000"),
    (["--name", "a\tb"], r"cnn-worker: --name: .*control characters$"),
    (["--name", "a\x85"], r"cnn-worker: --name: .*control characters$"),
    (["--no-such-option"], "no-such-option"),
    (["stray"], "stray"),
]
BAD_CTL = [
    ([], "command|status"),
    (["juggle"], "juggle"),
    (["export"], "export|FILE"),
    (["predict"], "predict|IMAGE"),
    (["status", "extra"], "extra|status"),
    (["--no-such-option"], "no-such-option"),
]


def name_of(row):
    return " ".join(row[0]) or "nothing" if isinstance(row, tuple) else None


def refused(programs, binary, arguments, named, code=2, env=None):
    """Run a program that must soon exit with `code` and log the reason. The logged reason must
    match the regular expression `named`. Returns the process."""
    p = programs.add(Process(binary, command(binary, *arguments), env))
    assert p.wait(10) == code, p.tail()
    assert p.lines and p.out == [], p.tail()
    p.line(rf"(?i)({named})", 0.1)
    return p


@pytest.mark.parametrize("row", BAD_SERVER, ids=name_of)
def test_bad_server_option_exits_2_and_touches_nothing(programs, row):
    place = programs.directory / "ckpt"
    arguments, named = row
    given = [] if "--checkpoint-dir" in arguments else ["--checkpoint-dir", place]
    port = [] if "--bind" in arguments else ["--bind", "tcp://127.0.0.1:0"]
    p = refused(programs, "cnn-ps", [*port, *given, *arguments], named)
    assert not place.exists() or not list(place.glob("ckpt-*")), "it wrote a checkpoint"
    assert not any("listening" in text for text in p.lines), p.tail()


@pytest.mark.parametrize("option", ["--bind", "--http"])
def test_a_port_in_use_leaves_no_directory_behind(programs, option):
    place = programs.directory / "ckpt"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        bind = ["--bind", f"tcp://{address}"] if option == "--bind" else [
            "--bind", "tcp://127.0.0.1:0", "--http", address]
        p = programs.add(Process("cnn-ps", command("cnn-ps", *bind, "--checkpoint-dir", place)))
        assert p.wait(10) == 2, p.tail()
        assert not place.exists(), "it goes with what it had made"
        place.mkdir()
        p = programs.add(Process("cnn-ps", command("cnn-ps", *bind, "--checkpoint-dir", place)))
        assert p.wait(10) == 2 and place.exists(), p.tail()


@pytest.mark.parametrize("files", [["train-labels-idx1-ubyte"],
                                   ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"]])
def test_a_half_fetched_data_set_is_not_passed_over_in_silence(programs, files):
    """If files of the data set are missing, the worker logs a warning. The worker takes Debian's
    Fashion-MNIST instead, if this package is installed."""
    place = programs.directory / "data/mnist"
    place.mkdir(parents=True)
    for name in files:
        (place / name).touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}
    done = subprocess.run(
        command("cnn-worker", "--connect-timeout-ms", 1), cwd=programs.directory, env=env,
        text=True, stderr=subprocess.PIPE, check=False, timeout=60)
    assert re.search(rf"level=warn .*data/mnist is ignored: it has {len(files)} of the 4 files",
                     done.stderr), done.stderr
    assert done.returncode in (3, 6), done.stderr


@pytest.mark.parametrize("row", BAD_WORKER, ids=name_of)
def test_bad_worker_option_exits_2(programs, small, row):
    refused(programs, "cnn-worker", ["--data", small, *row[0]], row[1])


@pytest.mark.parametrize("row", BAD_CTL, ids=name_of)
def test_bad_ctl_usage_exits_2(programs, row):
    refused(programs, "cnn-ctl", row[0], row[1])


def test_every_error_is_said_in_one_run(programs):
    p = refused(programs, "cnn-ps", ["--lr", "nan", "--epochs", "-1", "--optimizer", "magic"], "lr")
    p.line("epochs", 0.1)
    p.line("optimizer", 0.1)


def test_bad_environment_exits_2_and_names_the_variable(programs):
    refused(programs, "cnn-ps", [], "CNN_LR", env={"CNN_LR": "nan"})


def config(programs, *arguments, env=None):
    """Run cnn-ps --check-config with options that the program must accept. Returns the process,
    whose output is the configuration."""
    p = programs.add(Process("cnn-ps", command("cnn-ps", "--check-config", *arguments), env))
    assert p.wait(10) == 0, p.tail()
    return p


def warnings(p):
    return [text for text in p.lines if "no_effect" in text or "unknown_variable" in text
            or "renamed_variable" in text or "warning:" in text]


def test_unknown_variable_is_named_with_the_nearest_known_one(programs):
    p = config(programs, env={"CNN_EPOCH": "5", "CNN_LEASEBATCHES": "1", "CNN_XYZZY_PLUGH": "1"})
    p.line("CNN_EPOCH: unknown variable; did you mean CNN_EPOCHS", 0.1)
    p.line("CNN_LEASEBATCHES: unknown variable; did you mean CNN_LEASE_BATCHES", 0.1)
    p.line("CNN_XYZZY_PLUGH: unknown variable; --help", 0.1)
    assert len(warnings(p)) == 3, p.tail()


def variables_of(binary):
    text = subprocess.run(command(binary, "--help"), stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    return set(re.findall(r"\bCNN_[A-Z_0-9]+", text))


def test_variables_of_all_programs_scripts_and_tests_are_known(programs, small):
    options = {b: variables_of(b) for b in ("cnn-ps", "cnn-worker", "cnn-ctl")}
    assert {"CNN_EPOCHS", "CNN_DATA", "CNN_WEIGHTS"} <= set.union(*options.values())
    scripts = {"CNN_SLOW"}
    for file in [ROOT / "Makefile",
                 *(f for f in (ROOT / "deploy").rglob("*") if f.is_file()),
                 *(ROOT / "kernels").glob("*.c"),
                 *(ROOT / "tests").glob("*/*.mk"), *(ROOT / "tests").glob("*/*.py")]:
        if file != Path(__file__):
            scripts |= set(re.findall(r"(?:environ.*|getenv.*|\$\(|\$\{)\b(CNN_[A-Z_0-9]+)\b",
                                      file.read_text()))
    everything = scripts.union(*options.values())
    for binary, arguments in {
            "cnn-ps": ["--check-config"],
            "cnn-worker": ["--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1, "--data",
                           small],
            "cnn-ctl": ["keygen", programs.directory / "keys"]}.items():
        env = {name: "1" for name in everything - options[binary]}
        assert len(env) > 20
        p = programs.add(Process(binary, command(binary, *arguments), env))
        p.wait(10)
        assert not warnings(p), p.tail()


@pytest.mark.parametrize("given,where", [
    (["--ssp-bound", 2, "--mode", "sync"], "--ssp-bound has no effect with --mode sync: it needs "
     "--mode ssp"),
    (["--backup-workers", 1], "--backup-workers has no effect with --mode downpour"),
    (["--warm-start-ramp", 9], "--warm-start-ramp has no effect with --warm-start-updates 0"),
    (["--easgd-beta", 0.2, "--mode", "ssp"], "--easgd-beta .* --mode easgd"),
    (["--lbfgs-history", 3, "--optimizer", "sgd"],
     "--lbfgs-history has no effect with --optimizer sgd: it needs --optimizer lbfgs"),
    (["--momentum", 0.5], "--momentum has no effect with --optimizer rmsprop"),
    (["--dc-lambda", 1], "--dc-lambda has no effect with --delay-compensation none"),
    (["--schedule-every", 2, "--schedule", "cosine"], "--schedule-every .* --schedule step"),
    (["--lr", 0.1, "--mode", "easgd"], "--lr has no effect with --mode easgd"),
    (["--lr", 0.1, "--mode", "sandblaster"], "--lr has no effect with --optimizer lbfgs"),
    (["--clip-norm", 1, "--mode", "sandblaster"], "--clip-norm .* --optimizer lbfgs"),
    (["--checkpoint-ms", 100], "--checkpoint-ms has no effect without --checkpoint-dir"),
    (["--stop-at", "accuracy=0.9", "--model", "vector:9"], "--stop-at has no effect with --epochs 0"),
    (["--patience-epochs", 3, "--model", "vector:9"], "--patience-epochs .* --epochs 0"),
    (["--keep", "best", "--checkpoint-dir", "d", "--model", "vector:9"], "--keep .* --epochs 0"),
], ids=lambda v: str(v[0])[2:] if isinstance(v, list) else "")
def test_option_of_another_mode_or_optimizer_is_named(programs, given, where):
    p = config(programs, *given)
    p.line(where, 0.1)
    assert len(warnings(p)) == 1, p.tail()


def test_variable_of_another_mode_is_named(programs):
    p = config(programs, "--mode", "sync", env={"CNN_SSP_BOUND": "2"})
    p.line("CNN_SSP_BOUND has no effect with --mode sync", 0.1)


@pytest.mark.parametrize("given", [
    ["--buffer-size", 4, "--lr-scaling", "linear", "--lr-scaling-warmup", 100],
    ["--mode", "ssp", "--buffer-size", 4, "--lr-scaling-warmup", 100],
    ["--warm-start-ramp", 9, "--warm-start-updates", 5], ["--ssp-bound", 2, "--mode", "ssp"],
    ["--lbfgs-history", 3, "--mode", "sandblaster"],
    ["--lr", 0.5, "--mode", "sandblaster", "--optimizer", "sgd"],
    ["--momentum", 0.5, "--mode", "sync"], ["--warmup", 0.1, "--lr", 0.1, "--batch-size", 50],
    ["--dc-lambda", 1, "--delay-compensation", "constant"]], ids=lambda v: v[0][2:])
def test_option_that_has_an_effect_is_not_warned_about(programs, given):
    assert not warnings(config(programs, *given))


@pytest.mark.parametrize("then,now,said", [
    ([], ["--buffer-size", 4], "--buffer-size 1, not 4"),
    (["--mode", "ssp", "--buffer-size", 3], ["--mode", "ssp"], "--buffer-size 3, not 1"),
    (["--n-push", 2], ["--n-push", 2, "--push", "sum"], "--push mean, not sum"),
    ([], ["--metrics", "none"], "--metrics accuracy, not none"),
    (["--metrics", "accuracy,f1"], [], "--metrics accuracy f1, not accuracy"),
], ids=lambda v: str(v[-1]).replace(" ", "_") if isinstance(v, list) and v else "")
def test_option_that_a_run_cannot_change_is_named_with_both_values(programs, then, now, said):
    server = programs.server(*then)
    server.status()
    server.kill()
    again = programs.server(*now)
    assert again.wait(10) == 7, again.tail()
    again.line(f"its run has {said}: give the run's own value, or another --checkpoint-dir")


RENAMED = {
    "cnn-ps": {"stale-rate": "staleness-scaling", "warm-updates": "warm-start-updates",
               "forget-ms": "session-ttl-ms",
               "beat-ms": "heartbeat-ms", "local-rate": "local-lr", "max-norm": "reject-norm",
               "batch": "batch-size", "batch-images": "step-images",
               "journal-mb": "wal-mb", "elastic": "easgd-beta", "sync-spares": "backup-workers",
               "decay-square": "beta2 rmsprop-alpha"},
    "cnn-worker": {"hang-ms": "batch-timeout-ms", "patience-ms": "disconnect-timeout-ms",
                   "connect-ms": "connect-timeout-ms"},
    "cnn-ctl": {"connect-ms": "connect-timeout-ms"},
}


@pytest.mark.parametrize("program", RENAMED)
def test_a_renamed_option_or_variable_is_refused_with_its_new_name(program):
    def variable(name):
        return "CNN_" + name.upper().replace("-", "_")

    def refusal(*args, **variables):
        done = subprocess.run(command(program, *args), stderr=subprocess.PIPE, text=True,
                              timeout=10, stdin=subprocess.DEVNULL, env={**os.environ, **variables})
        assert done.returncode == 2, done.stderr
        line, = done.stderr.splitlines()
        return line

    rest = ("status",) if program == "cnn-ctl" else ()
    for old, new in RENAMED[program].items():
        options = " or ".join("--" + name for name in new.split())
        variables = " or ".join(variable(name) for name in new.split())
        for args in ((f"--{old}", "1"), (f"--{old}=1",)):
            assert refusal(*rest, *args) == f"{program}: --{old}: was renamed to {options}"
        assert refusal(*rest, **{variable(old): "1"}) == (
            f"{program}: {variable(old)}: was renamed to {variables}")


def test_a_renamed_variable_of_another_program_is_named_with_its_new_name(programs, small):
    """The server, the workers and cnn-ctl may all get the same environment."""
    of_server = {"CNN_FORGET_MS": "CNN_SESSION_TTL_MS",
                 "CNN_DECAY_SQUARE": "CNN_BETA2 or CNN_RMSPROP_ALPHA"}
    of_worker = {"CNN_HANG_MS": "CNN_BATCH_TIMEOUT_MS"}
    of_clients = {"CNN_CONNECT_MS": "CNN_CONNECT_TIMEOUT_MS"}
    for binary, arguments, renamed in [
            ("cnn-ps", ["--check-config"], {**of_worker, **of_clients}),
            ("cnn-worker", ["--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1, "--data",
                            small], of_server),
            ("cnn-ctl", ["keygen", programs.directory / "keys"], {**of_server, **of_worker})]:
        env = dict.fromkeys(renamed, "1")
        p = programs.add(Process(binary, command(binary, *arguments), env))
        p.wait(10)
        for old, new in renamed.items():
            p.line(f'{old}: was renamed to {new}("|$)', 0.1)
        assert len(warnings(p)) == len(renamed), p.tail()


def default_in_help(text, values):
    """Returns the default value from a help text, such as "0.3" or "with --mode sync: 0.5, easgd:
    1, else with --epochs 0 and --store cuda: 2, otherwise 0". Of several values, the first one whose
    condition is true applies."""
    option = None

    def holds(option, wanted):
        value = values[option.lstrip("-")]
        # the condition "--model vector" is true for vector:8
        return value == wanted or value.startswith(wanted + ":")

    for part in text.removeprefix("with ").split(", "):
        if part.startswith("otherwise "):
            return part.removeprefix("otherwise ")
        condition, colon, value = part.removeprefix("else with ").partition(": ")
        if not colon:
            return part
        if " " not in condition:
            condition = f"{option} {condition}"
        option = condition.split()[0]
        if all(holds(*pair.split()) for pair in condition.split(" and ")):
            return value
    raise AssertionError(f"no value in {text!r}")


@pytest.mark.parametrize("options", [
    (), ("--mode", "ssp"), ("--mode", "sync"), ("--mode", "sandblaster"), ("--mode", "easgd"),
    ("--mode", "sandblaster", "--optimizer", "sgd"), ("--model", "vector:8"),
    ("--delay-compensation", "adaptive"), ("--schedule", "onecycle", "--epochs", "2"),
    *(("--optimizer", name) for name in ("sgd", "adagrad", "momentum", "adam"))])
def test_help_says_the_defaults_that_are_taken(options):
    done = subprocess.run(command("cnn-ps", "--check-config", *options), text=True, timeout=20,
                          capture_output=True, check=True)
    rows = re.findall(r'msg="options value" name=(\S+) value=(\S+) origin=(\S+)', done.stderr)
    values = {name: value.strip('"') for name, value, _ in rows}
    shown = " ".join(subprocess.run(command("cnn-ps", "--help"), stdout=subprocess.PIPE, text=True,
                                    check=True).stdout.split())
    compared = 0
    for name, value, origin in rows:
        variable = "CNN_" + name.upper().replace("-", "_")
        said = re.search(rf"default(:?) ([^;()]*); {variable}[;)]", shown)
        # Skip texts such as "default: off", which name no value. Also skip `auto`, because
        # --check-config prints the value for which `auto` stands.
        if origin != "default" or not said or said[1] or said[2] == "auto":
            continue
        # The help leaves out the default of an option for the cases in which it has no effect.
        without = re.search(rf"{variable}[^)]*not with ([^)]*)\)", shown)
        if without and any(values.get(option) in names.split("|") for option, names in
                           re.findall(r"--(\S+) (\S+)", without[1])):
            continue
        text = default_in_help(said[2], values)
        text = {"off": "0", "on": "1"}.get(text, text)
        assert text == value.strip('"') or float(text) == float(value), (name, text, value)
        compared += 1
    assert compared > 50


def test_a_fingerprint_may_be_in_capitals(programs):
    config(programs, "--data-id", "0123456789ABCDEF")


def test_option_of_another_command_is_named(programs):
    def status(*arguments, env=None):
        p = programs.add(Process("cnn-ctl", command("cnn-ctl", "--connect-timeout-ms", 1,
                                               "--server", "tcp://127.0.0.1:1", *arguments), env))
        assert p.wait(10) == 3, p.tail()
        return p
    p = status("status", "--checkpoint", "X")
    p.line("warning: --checkpoint has no effect with status: it is for export|predict", 0.1)
    p = status("status", env={"CNN_CHECKPOINT": "X"})
    p.line("warning: CNN_CHECKPOINT has no effect with status", 0.1)
    p = programs.add(Process("cnn-ctl", command("cnn-ctl", "keygen", programs.directory / "keys",
                                           "--server", "tcp://127.0.0.1:1")))
    assert p.wait(10) == 0, p.tail()
    p.line("warning: --server has no effect with keygen$", 0.1)
    # cnn-ctl warns of no variable here, because the server or the workers read these variables
    assert not warnings(status("status", env={"CNN_DATA": "X", "CNN_MODEL": "seed:4"}))


@pytest.mark.parametrize("binary", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_help_is_on_stdout_and_exits_0(programs, binary):
    p = programs.add(Process(binary, command(binary, "--help")))
    assert p.wait(10) == 0 and p.out and not p.lines, p.tail()


TRAIN, TRAIN_LABELS, TEST, TEST_LABELS = idx.NAMES


def image_file(n=4, rows=28, cols=28):
    return idx.encode(np.zeros((n, rows, cols), np.uint8))


def label_file(values=(1, 2, 3, 4)):
    return idx.encode(np.array(values, np.uint8))


def gz(raw):
    return gzip.compress(raw, mtime=0)


# (file, its bytes or None if the file is absent, suffix "" or ".gz")
BAD_FILES = {
    "absent": (TRAIN, None, ""),
    "empty": (TRAIN, b"", ""),
    "header cut": (TRAIN, image_file()[:9], ""),
    "body cut": (TRAIN, image_file()[:-1], ""),
    "one byte too many": (TRAIN, image_file() + b"\0", ""),
    "wrong magic": (TRAIN, b"\1" + image_file()[1:], ""),
    "floats": (TRAIN, b"\0\0\x0d\3" + image_file()[4:], ""),
    "one dimension": (TRAIN, label_file(), ""),
    "says more than there is": (TRAIN, image_file()[:4] + struct.pack(">I", 5) + image_file()[8:],
                                ""),
    "dimensions overflow": (TRAIN, struct.pack(">4I", 0x803, 2**31, 2**31, 2**31), ""),
    "dimensions overflow to the right size": (
        TRAIN, struct.pack(">4I", 0x803, 2**31, 2**31, 4) + image_file()[16:], ""),
    "no images": (TRAIN, image_file(0), ""),
    "rows 0": (TRAIN, struct.pack(">4I", 0x803, 4, 0, 28), ""),
    "label -1": (TRAIN_LABELS, struct.pack(">2I4h", 0xb01, 4, 1, 2, 3, -1), ""),
    "label 65536": (TEST_LABELS, struct.pack(">6I", 0xc01, 4, 65536, 2, 3, 4), ""),
    "labels of floats": (TRAIN_LABELS, struct.pack(">2I4f", 0xd01, 4, 1, 2, 3, 4), ""),
    "fewer labels": (TRAIN_LABELS, label_file((1, 2, 3)), ""),
    "more labels": (TRAIN_LABELS, label_file((1, 2, 3, 4, 5)), ""),
    "test images of another size": (TEST, image_file(4, 14, 14), ""),
    "gzip cut": (TRAIN, gz(image_file())[:-9], ".gz"),
    "gzip with a wrong sum": (TRAIN, gz(image_file())[:-8] + bytes(8), ".gz"),
    "gzip bomb": (TRAIN, gz(image_file() + bytes(300_000_000)), ".gz"),
    "gzip and more gzip": (TRAIN, gz(image_file()) + gz(b"more"), ".gz"),
    "gzip and junk": (TRAIN, gz(image_file()) + b"junk", ".gz"),
}


def tiny(directory):
    """Write a valid data set of four training images and four test images."""
    directory.mkdir()
    for name in (TRAIN, TEST):
        (directory / name).write_bytes(image_file())
    for name in (TRAIN_LABELS, TEST_LABELS):
        (directory / name).write_bytes(label_file())
    return directory


@pytest.mark.parametrize("case", BAD_FILES, ids=lambda c: c.replace(" ", "-"))
def test_bad_data_file_exits_6_and_names_it(programs, tmp_path, case):
    name, raw, suffix = BAD_FILES[case]
    directory = tiny(tmp_path / "data")
    (directory / name).unlink()
    if raw is not None:
        (directory / (name + suffix)).write_bytes(raw)
    p = refused(programs, "cnn-worker", ["--server", "tcp://127.0.0.1:1", "--data", directory],
                f"{name}|test images 1x14x14", 6)
    assert len(p.lines) <= 2, p.tail()


def test_data_directory_without_data_says_what_to_do(programs, tmp_path):
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "empty", tmp_path / "absent"):
        p = refused(programs, "cnn-worker", ["--server", "tcp://127.0.0.1:1", "--data", directory],
                    "make data.*leave --data out", 6)
        p.line(f"--data: {directory} ", 0.1)


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_data_file_that_is_no_regular_file_exits_6(programs, tmp_path, kind):
    directory = tiny(tmp_path / "data")
    place = directory / TRAIN
    place.unlink()
    if kind == "directory":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    refused(programs, "cnn-worker", ["--server", "tcp://127.0.0.1:1", "--data", directory], TRAIN,
            6)


def test_good_tiny_files_are_not_refused(programs, tmp_path):
    """The undamaged files of tiny() load without an error, so the refusals in the tests above come
    from the damage to the files."""
    directory = tiny(tmp_path / "data")
    p = programs.worker("tcp://127.0.0.1:1", "--connect-timeout-ms", 500, data=directory)
    assert p.wait(15) == 3, p.tail()


def test_gzip_bomb_costs_no_memory(programs, tmp_path):
    directory = tiny(tmp_path / "data")
    (directory / TRAIN).unlink()
    (directory / (TRAIN + ".gz")).write_bytes(gz(image_file() + bytes(300_000_000)))
    limited = [shutil.which("prlimit"), "--data=200000000"] + command(
        "cnn-worker", "--server", "tcp://127.0.0.1:1", "--data", directory)
    p = programs.add(Process("cnn-worker", limited))
    assert p.wait(10) == 6, p.tail()


# ---- runs that are probably mistakes, but not errors

def doubtful(programs, words, *options):
    """Make a short run that must cause exactly one warning in the log and one in the result. The
    warning must match the regular expression `words`."""
    server = programs.server("--model", "fc:10", "--epochs", 1, *options, directory=None)
    worker = programs.worker(server.endpoint)
    result = server.result()
    assert worker.wait(10) == 0, worker.tail()
    logged = [line for line in server.lines if re.search(words, line)]
    assert len(logged) == 1 and "warn" in logged[0], server.tail()
    found = [text for text in result["warnings"] if re.search(words, text)]
    assert len(found) == 1, result["warnings"]
    return result


@pytest.fixture
def small_programs(programs, small):
    programs.data = small
    return programs


def test_rate_that_learns_nothing_is_warned_about_and_so_is_its_result(small_programs):
    result = doubtful(small_programs, "--lr 500 is 2500 times the usual rate of sgd", "--optimizer",
                      "sgd", "--lr", 500, "--staleness-scaling", "constant")
    chance = any("no better than chance" in text for text in result["warnings"])
    assert chance == (result["accuracy"] <= 0.125 + 3 * (0.125 * 0.875 / 1000) ** 0.5)


def test_result_at_chance_level_is_warned_about(small_programs):
    result = doubtful(small_programs, "no better than chance", "--lr", 1e-12)
    assert result["status"] == "done" and result["accuracy"] < 0.2


def test_batch_larger_than_the_data_set_is_warned_about(small_programs):
    doubtful(small_programs, "--batch-size 100000 is larger than the data set: all 6000 images",
             "--batch-size", 100000)


def test_ordinary_run_has_no_warnings(small_programs):
    server = small_programs.server("--model", "fc:10", "--epochs", 1, directory=None)
    small_programs.worker(server.endpoint)
    assert server.result()["warnings"] == []
    assert not any("warning" in line for line in server.lines), server.tail()

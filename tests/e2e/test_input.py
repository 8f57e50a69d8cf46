"""Bad options and bad data files: the documented exit status and one clear line, nothing else."""
import gzip
import os
import shutil
import struct

import numpy as np
import pytest

import idx
from flavour import command
from lab import Process

# arguments, what the message must name
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
    (["--batch", "0"], "batch"),
    (["--batch", "1.5"], "batch"),
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
    (["--checkpoint-dir", "/proc/no/such/dir"], "checkpoint-dir|/proc/no/such/dir"),
    (["--checkpoint-ms", "-5"], "checkpoint-ms"),
    (["--min-workers", "0"], "min-workers"),
]
BAD_WORKER = [
    (["--threads", "0"], "threads"),
    (["--threads", "many"], "threads"),
    (["--device", "abacus"], "device|abacus"),
    (["--server", ""], "server"),
    (["--server", "nonsense"], "server|endpoint|nonsense"),
    (["--server", "tcp://127.0.0.1:70000"], "server|endpoint|70000"),
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


def refused(lab, binary, arguments, named, code=2, env=None):
    """The program ends soon with `code` and says why in lines of its own format."""
    p = lab.add(Process(binary, command(binary, *arguments), env))
    assert p.wait(10) == code, p.tail()
    assert p.lines and p.out == [], p.tail()
    p.line(rf"(?i)({named})", 0.1)
    return p


@pytest.mark.parametrize("row", BAD_SERVER, ids=name_of)
def test_bad_server_option_exits_2_and_touches_nothing(lab, row):
    place = lab.directory / "ckpt"
    arguments, named = row
    given = [] if "--checkpoint-dir" in arguments else ["--checkpoint-dir", place]
    port = [] if "--bind" in arguments else ["--bind", "tcp://127.0.0.1:0"]
    p = refused(lab, "cnn-ps", [*port, *given, *arguments], named)
    assert not place.exists() or not list(place.glob("ckpt-*")), "it wrote a checkpoint"
    assert not any("listening" in text for text in p.lines), p.tail()


@pytest.mark.parametrize("row", BAD_WORKER, ids=name_of)
def test_bad_worker_option_exits_2(lab, small, row):
    refused(lab, "cnn-worker", ["--data", small, *row[0]], row[1])


@pytest.mark.parametrize("row", BAD_CTL, ids=name_of)
def test_bad_ctl_usage_exits_2(lab, row):
    refused(lab, "cnn-ctl", row[0], row[1])


def test_every_error_is_said_in_one_run(lab):
    p = refused(lab, "cnn-ps", ["--lr", "nan", "--epochs", "-1", "--optimizer", "magic"], "lr")
    p.line("epochs", 0.1)
    p.line("optimizer", 0.1)


def test_bad_environment_exits_2_and_names_the_variable(lab):
    refused(lab, "cnn-ps", [], "CNN_LR", env={"CNN_LR": "nan"})


@pytest.mark.parametrize("binary", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_help_is_on_stdout_and_exits_0(lab, binary):
    p = lab.add(Process(binary, command(binary, "--help")))
    assert p.wait(10) == 0 and p.out and not p.lines, p.tail()


TRAIN, TRAIN_LABELS, TEST, TEST_LABELS = idx.NAMES


def image_file(n=4, rows=28, cols=28):
    return idx.encode(np.zeros((n, rows, cols), np.uint8))


def label_file(values=(1, 2, 3, 4)):
    return idx.encode(np.array(values, np.uint8))


def gz(raw):
    return gzip.compress(raw, mtime=0)


# file, its bytes (None: absent), plain or ".gz"
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
    "label 10": (TRAIN_LABELS, label_file((1, 2, 3, 10)), ""),
    "label 255": (TEST_LABELS, label_file((255, 2, 3, 4)), ""),
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
    """Four images to train on and four to test with, all well-formed."""
    directory.mkdir()
    for name in (TRAIN, TEST):
        (directory / name).write_bytes(image_file())
    for name in (TRAIN_LABELS, TEST_LABELS):
        (directory / name).write_bytes(label_file())
    return directory


@pytest.mark.parametrize("case", BAD_FILES, ids=lambda c: c.replace(" ", "-"))
def test_bad_data_file_exits_6_and_names_it(lab, tmp_path, case):
    name, raw, suffix = BAD_FILES[case]
    directory = tiny(tmp_path / "data")
    (directory / name).unlink()
    if raw is not None:
        (directory / (name + suffix)).write_bytes(raw)
    p = refused(lab, "cnn-worker", ["--server", "tcp://127.0.0.1:1", "--data", directory],
                f"{name}|test images 14x14", 6)
    assert len(p.lines) <= 2, p.tail()


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_data_file_that_is_no_regular_file_exits_6(lab, tmp_path, kind):
    directory = tiny(tmp_path / "data")
    place = directory / TRAIN
    place.unlink()
    if kind == "directory":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    refused(lab, "cnn-worker", ["--server", "tcp://127.0.0.1:1", "--data", directory], TRAIN, 6)


def test_good_tiny_files_are_not_refused(lab, tmp_path):
    """What the cases above start from is right: without the fault the worker gets past its data."""
    directory = tiny(tmp_path / "data")
    p = lab.worker("tcp://127.0.0.1:1", "--connect-ms", 500, data=directory)
    assert p.wait(15) == 3, p.tail()


def test_gzip_bomb_costs_no_memory(lab, tmp_path):
    directory = tiny(tmp_path / "data")
    (directory / TRAIN).unlink()
    (directory / (TRAIN + ".gz")).write_bytes(gz(image_file() + bytes(300_000_000)))
    limited = [shutil.which("prlimit"), "--data=200000000"] + command(
        "cnn-worker", "--server", "tcp://127.0.0.1:1", "--data", directory)
    p = lab.add(Process("cnn-worker", limited))
    assert p.wait(10) == 6, p.tail()

"""Test cnn-ctl with real servers, checkpoints and pictures. Other tests of this file run the
example program worker/examples/line.c, or stop workers with signals."""
import base64
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import zlib

import numpy as np
import pytest

from support import idx
from support.build import command
from support.programs import SIGTERM, Process, until


def png(pixels):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I",
                                                                        zlib.crc32(name + data))
    height, width = pixels.shape[:2]
    # 4 and 0 are the PNG colour types of grey with and without alpha
    kind = 4 if pixels.ndim == 3 else 0
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, kind, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def pgm(pixels):
    return b"P5\n%d %d\n255\n" % pixels.shape[::-1] + pixels.tobytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """Yields the checkpoint directory of a network after one epoch of training."""
    from support.programs import Programs
    directory = tmp_path_factory.mktemp("trained")
    programs = Programs(directory, data)
    server = programs.server("--model", "seed:8", "--epochs", 1)
    programs.worker(server.endpoint)
    server.result()
    programs.close()
    return directory / "ckpt"


def weights_of(path, model, tensors, metadata=True):
    """Write a .safetensors file with `tensors`, which is {name: array}."""
    header, at, data = {}, 0, b""
    if metadata:
        header["__metadata__"] = {"format": "pt", "model": model}
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [at, at + len(raw)]}
        at, data = at + len(raw), data + raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def linear(path, classes, **how):
    """Write the weights of a model with one layer. The model assigns every image to its last class,
    with a probability of 75 %."""
    bias = np.zeros(classes)
    bias[-1] = np.log(3 * (classes - 1))
    return weights_of(path, f"fc:{classes}", {"fc1.weight": np.zeros((classes, 784)), "fc1.bias": bias}, **how)


def answers(ctl):
    """Returns (image, class, per cent, rest of the line) for each picture that cnn-ctl
    predicted."""
    rows = (line.partition(": ") for line in ctl.out if "%" in line and ": " in line)
    return [(name, int(rest.split()[0]), float(rest.split("(")[1].split()[0]),
             rest.partition("),")[2])
            for name, _, rest in rows]


def test_status_is_json(programs):
    server = programs.server("--model", "vector:3", "--seed", 9)
    status = json.loads("\n".join(programs.ctl("--server", server.endpoint, "status").out))
    assert (status["model"], status["seed"], status["updates"]) == ("vector:3", 9, 0)


def test_top_off_a_terminal_is_one_screen(programs):
    server = programs.server("--model", "vector:3")
    screen = "\n".join(programs.ctl("--server", server.endpoint, "top").out)
    assert "model vector:3" in screen and "updates 0" in screen and "#  name  host" in screen


def test_checkpoint_is_on_disk_when_it_is_answered(programs):
    server = programs.server("--model", "vector:3", "--checkpoint-ms", 3600000)
    word, generation = programs.ctl("--server", server.endpoint, "checkpoint").out[0].split()
    assert word == "generation"
    assert (server.directory / f"ckpt-{int(generation):016x}").exists()


def test_drain_ends_the_server_with_0(programs):
    server = programs.server("--model", "vector:3")
    programs.ctl("--server", server.endpoint, "drain")
    assert server.wait(10) == 0, server.tail()


def test_log_level_is_changed_at_run_time(programs):
    server = programs.server("--model", "vector:3")
    assert server.status()["log_level"] == "info"
    assert programs.ctl("--server", server.endpoint, "log-level", "debug").out == ["log level debug"]
    # this line shows that the server has noticed the end of cnn-ctl's connection
    server.line('level=debug msg="net hung_up"')
    assert server.status()["log_level"] == "debug"
    programs.ctl("--server", server.endpoint, "log-level", "warn")
    place = len(server.lines)
    programs.ctl("--server", server.endpoint, "drain")
    assert server.wait(10) == 0, server.tail()
    assert not any(" level=info " in line or " level=debug " in line
                   for line in server.lines[place:]), server.tail()
    for wrong in ("loud", "DEBUG", ""):
        ctl = programs.ctl("--server", "tcp://127.0.0.1:1", "log-level", wrong, code=2)
        assert "error, warn, info and debug" in ctl.lines[0]


def test_export_from_the_server_and_from_its_checkpoint_are_the_same(programs):
    server = programs.server("--model", "lenet5", "--epochs", 1)
    live = programs.export(server.endpoint, "live.safetensors").read_bytes()
    programs.ctl("--server", server.endpoint, "drain")
    assert server.wait(10) == 0
    assert programs.export(server.directory, "kept.safetensors").read_bytes() == live


def test_predict_names_test_images(programs, trained, data):
    images = list(range(20))
    labels = idx.read(data, idx.NAMES[3])[:20]
    found = answers(programs.ctl("predict", "--checkpoint", trained, "--data", data, *images))
    assert [int(name) for name, *_ in found] == images
    right = 0
    for (_, best, percent, words), label in zip(found, labels):
        assert f"label {label}" in words and ("wrong" in words) == (best != label)
        assert 10 <= percent <= 100
        right += best == label
    assert right >= 13, found


def test_predict_sees_the_same_in_every_form_of_a_picture(programs, trained, data):
    pixels = idx.read(data, idx.NAMES[2])[0]
    (programs.directory / "a.pgm").write_bytes(pgm(pixels))
    (programs.directory / "b.png").write_bytes(png(pixels))
    weights = programs.export(trained, "weights.safetensors")
    by_checkpoint = programs.ctl("predict", "--checkpoint", trained, "--data", data, 0,
                            programs.directory / "a.pgm", programs.directory / "b.png")
    by_weights = programs.ctl("predict", "--weights", weights, "--model", "seed:8",
                         programs.directory / "a.pgm")
    found = answers(by_checkpoint) + answers(by_weights)
    assert len(found) == 4 and len({(best, percent) for _, best, percent, _ in found}) == 1


# The grey values of the blocks of the JPEG below, which has 28 x 28 pixels in blocks of 8 x 8. At
# quality 100, JPEG stores a block of one grey value exactly.
BLOCKS = [[0, 40, 200, 255], [90, 250, 10, 60], [255, 0, 128, 30], [20, 220, 70, 140]]
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
    "AQEBAQEBAQEBAQEBAQEBAQH/wAALCAAcABwBAREA/8QAFwABAQEBAAAAAAAAAAAAAAAACwkKB//EABQQAQAAAAAAAAAAAAAA"
    "AAAAAAD/2gAIAQEAAD8AP/VAKALcC1ygAH9ZAwwAHIAMd7l5kAae0YP/2Q==")


def test_predict_reads_png_jpeg_and_pgm_from_files_and_from_standard_input(programs, trained):
    pixels = np.kron(np.array(BLOCKS, np.uint8), np.ones((8, 8), np.uint8))[:28, :28]
    pictures = {"a.png": png(pixels), "a.jpg": JPEG, "a.pgm": pgm(pixels)}
    for name, content in pictures.items():
        (programs.directory / name).write_bytes(content)
    found = answers(programs.ctl("predict", "--checkpoint", trained,
                                 *(programs.directory / name for name in pictures)))
    for content in pictures.values():
        done = subprocess.run(command("cnn-ctl", "predict", "--checkpoint", trained, "-"),
                              input=content, capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr
        [line] = re.findall(r"^-: (\d+) \((\S+) %", done.stdout.decode(), re.M)
        found.append(("-", int(line[0]), float(line[1]), ""))
    assert len(found) == 6 and len({(best, percent) for _, best, percent, _ in found}) == 1


@pytest.mark.parametrize("classes", [2, 5, 12, 13, 47, 256])
def test_predict_answers_with_any_number_of_classes(programs, classes):
    file = linear(programs.directory / "w.safetensors", classes)
    (programs.directory / "black.pgm").write_bytes(pgm(np.zeros((28, 28), np.uint8)))
    ctl = programs.ctl("predict", "--weights", file, "--model", f"fc:{classes}",
                       programs.directory / "black.pgm")
    assert [(best, percent) for _, best, percent, _ in answers(ctl)] == [(classes - 1, 75.0)]
    rows = [line.split()[:2] for line in ctl.out[1:] if "%" in line and line.startswith(" " * 28)]
    assert [classes - 1, 75.0] in [[int(row[0]), float(row[1])] for row in rows]
    assert len(rows) == min(classes, 12) and all("%" not in line or len(line) < 80
                                                 for line in ctl.out[1:])


def test_predict_takes_the_model_from_the_weights_file(programs, trained, data):
    weights = programs.export(trained, "weights.safetensors")
    named = programs.ctl("predict", "--weights", weights, "--model", "seed:8", "--data", data,
                         *range(5))
    assert programs.ctl("predict", "--weights", weights, "--data", data, *range(5)).out == named.out
    other = programs.ctl("predict", "--weights", weights, "--model", "seed:16", "--data", data, 0,
                         code=2)
    assert len(other.lines) == 1 and "conv:16:3" in other.lines[0] and "conv:8:3" in other.lines[0]
    assert "--model" in other.lines[0] and str(weights) in other.lines[0]


def test_a_weights_file_that_does_not_name_its_model_needs_the_option(programs):
    file = linear(programs.directory / "w.safetensors", 3, metadata=False)
    (programs.directory / "black.pgm").write_bytes(pgm(np.zeros((28, 28), np.uint8)))
    ctl = programs.ctl("predict", "--weights", file, programs.directory / "black.pgm", code=2)
    assert str(file) in ctl.lines[0] and "--model" in ctl.lines[0]
    assert answers(programs.ctl("predict", "--weights", file, "--model", "fc:3",
                                programs.directory / "black.pgm"))


def test_a_label_that_the_model_does_not_have_is_shown_as_wrong(programs, data):
    """Test image 0 is a 7 (MNIST) or a boot, class 9 (Fashion-MNIST). A model with two classes has
    neither of these labels."""
    file = linear(programs.directory / "w.safetensors", 2)
    ctl = programs.ctl("predict", "--weights", file, "--model", "fc:2", "--data", data, 0)
    assert "wrong" in ctl.out[1]


def test_a_model_without_classes_cannot_predict(programs):
    file = weights_of(programs.directory / "w.safetensors", "vector:3", {"vector": np.zeros(3)})
    (programs.directory / "black.pgm").write_bytes(pgm(np.zeros((28, 28), np.uint8)))
    ctl = programs.ctl("predict", "--weights", file, programs.directory / "black.pgm", code=2)
    assert "vector:3" in ctl.lines[0] and "classes" in ctl.lines[0]


def test_predict_draws_the_picture(programs, trained):
    pixels = np.zeros((28, 28), np.uint8)
    pixels[0, 0] = pixels[3, 1] = pixels[26:28, 27] = 255
    (programs.directory / "dots.pgm").write_bytes(pgm(pixels))
    lines = programs.ctl("predict", "--checkpoint", trained, programs.directory / "dots.pgm").out
    assert lines[1][0] == "\u2580" and lines[2][1] == "\u2584" and lines[14][27] == "\u2588"
    bars = [line[28:].split() for line in lines[3:13]]
    assert [int(bar[0]) for bar in bars] == list(range(10))
    assert sum(float(bar[1]) for bar in bars) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("name, content", {
    "empty": b"", "text": b"hello", "half": pgm(np.zeros((28, 28), np.uint8))[:400],
    "small": pgm(np.zeros((27, 28), np.uint8)), "large": png(np.zeros((280, 280), np.uint8)),
    "huge": b"P5\n99999 99999\n255\n", "cut": png(np.zeros((28, 28), np.uint8))[:50],
}.items())
def test_bad_picture_exits_6_and_is_named(programs, trained, name, content):
    (programs.directory / name).write_bytes(content)
    ctl = programs.ctl("predict", "--checkpoint", trained, programs.directory / name, code=6)
    assert len(ctl.lines) == 1 and name in ctl.lines[0] and not ctl.out, ctl.tail()


@pytest.mark.parametrize("form", ["png", "pgm"])
def test_predict_reads_standard_input(programs, trained, data, form):
    pixels = idx.read(data, idx.NAMES[2])[3]
    picture = png(pixels) if form == "png" else pgm(pixels)
    done = subprocess.run(command("cnn-ctl", "predict", "--checkpoint", trained, "-"), input=picture,
                          capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    named = programs.ctl("predict", "--checkpoint", trained, "--data", data, 3).out
    assert lines[0].partition(": ")[0] == "-"
    assert lines[1:] == named[2:]  # the first line names the directory of the test images
    empty = subprocess.run(command("cnn-ctl", "predict", "--checkpoint", trained, "-"), input=b"",
                           capture_output=True, timeout=30)
    assert empty.returncode == 6 and b"standard input: neither PNG" in empty.stderr


def test_standard_input_larger_than_a_picture_is_refused(trained):
    done = subprocess.run(command("cnn-ctl", "predict", "--checkpoint", trained, "-"),
                          input=bytes((64 << 20) + 1), capture_output=True, timeout=60)
    assert done.returncode == 6 and b"standard input: too large" in done.stderr


def test_dark_on_light_is_noticed_and_inverted(programs, trained, data):
    pixels = idx.read(data, idx.NAMES[2])[:4]
    dark, light = [], []
    for i, image in enumerate(pixels):
        light.append(programs.directory / f"light{i}.png")
        light[-1].write_bytes(png(image))
        dark.append(programs.directory / f"dark{i}.png")
        dark[-1].write_bytes(png(255 - image))
    ctl = programs.ctl("predict", "--checkpoint", trained, *dark, *light)
    warned = [line for line in ctl.lines if "dark on light" in line]
    assert len(warned) == 4 and all(f"dark{i}.png" in line for i, line in enumerate(warned))
    assert "add --invert" in warned[0]
    inverted = programs.ctl("predict", "--checkpoint", trained, "--invert", *dark)
    assert not inverted.lines
    plain = programs.ctl("predict", "--checkpoint", trained, *light)
    assert [a[1:] for a in answers(inverted)] == [a[1:] for a in answers(plain)]
    twice = programs.ctl("predict", "--checkpoint", trained, "--invert", *dark, *light)
    assert len(twice.lines) == 4, "only those that were light on dark"
    for i, line in enumerate(twice.lines):
        assert f"light{i}.png: dark on light after --invert" in line and "remove --invert" in line


def test_transparent_pixels_are_seen_on_white(programs, trained, data, mnist):
    """Some drawing programs save black ink on transparent pixels. On a black background such ink
    would be invisible."""
    ink = idx.read(data, idx.NAMES[2])[0]
    clear, opaque = programs.directory / "clear.png", programs.directory / "opaque.png"
    clear.write_bytes(png(np.stack([np.zeros_like(ink), ink], axis=2)))
    opaque.write_bytes(png(255 - ink))
    warned = programs.ctl("predict", "--checkpoint", trained, clear, opaque)
    assert sum("add --invert" in line for line in warned.lines) == 2, warned.lines
    first, second = answers(programs.ctl("predict", "--checkpoint", trained, "--invert", clear, opaque))
    # The percentages of the two pictures differ a little, because libpng blends the transparent one
    # in linear light. Most pixels of the clothes of Fashion-MNIST are half transparent here.
    assert first[1] == second[1] and (not mnist or abs(first[2] - second[2]) < 1)


def test_light_ink_on_transparent_pixels_is_seen_on_black(programs, trained, data, mnist):
    """On a white background, light ink would be invisible, and the picture would be blank."""
    ink = idx.read(data, idx.NAMES[2])[0]
    clear, opaque = programs.directory / "clear.png", programs.directory / "opaque.png"
    clear.write_bytes(png(np.stack([np.full_like(ink, 255), ink], axis=2)))
    opaque.write_bytes(png(ink))
    done = programs.ctl("predict", "--checkpoint", trained, clear, opaque)
    assert not done.lines
    first, second = answers(done)
    assert first[1] == second[1] and (not mnist or abs(first[2] - second[2]) < 1)


@pytest.mark.parametrize("grey", [0, 128, 255])
@pytest.mark.parametrize("options", [[], ["--invert"]], ids=["plain", "invert"])
def test_a_blank_picture_is_noticed(programs, trained, grey, options):
    (programs.directory / "blank.pgm").write_bytes(pgm(np.full((28, 28), grey, np.uint8)))
    done = programs.ctl("predict", "--checkpoint", trained, *options, programs.directory / "blank.pgm")
    warning, = done.lines
    assert "blank.pgm: blank" in warning


def rest_of(terminal):
    """Read the output on a terminal until all programs have closed the terminal, and close it.
    Returns the output."""
    text = b""
    while True:
        try:
            text += os.read(terminal, 65536)
        except OSError:  # read() fails because all programs have closed the terminal
            os.close(terminal)
            return text


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_on_a_terminal(programs, trained, no_color):
    (programs.directory / "black.pgm").write_bytes(pgm(np.zeros((28, 28), np.uint8)))
    ours, its = pty.openpty()
    done = subprocess.Popen(
        command("cnn-ctl", "predict", "--checkpoint", trained, programs.directory / "black.pgm"),
        stdout=its, env=dict(os.environ, NO_COLOR=no_color))
    os.close(its)
    text = rest_of(ours)
    assert done.wait(30) == 0 and b"black.pgm: " in text
    assert (b"\x1b" in text) == (not no_color)


def long_history(directory):
    """Writes a history file that is longer than the buffer of a pipe. Returns `directory`."""
    lines = [{"t": 1000 * i, "kind": "epoch", "epoch": i, "accuracy": 0.5} for i in range(1, 2000)]
    (directory / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    return directory


PRINTS = [("history", "LONG"), ("history", "CKPT"), ("report", "LONG"), ("show", "CKPT"),
          ("predict", "--checkpoint", "CKPT", "PICTURE")]


def prints_to(out, programs, trained, arguments):
    """Runs cnn-ctl with the output `out`; returns its status and what it writes to stderr."""
    pixels = np.zeros((28, 28), np.uint8)
    pixels[4:24, 13:15] = 255
    (programs.directory / "one.pgm").write_bytes(pgm(pixels))
    names = {"LONG": long_history(programs.directory), "CKPT": trained,
             "PICTURE": programs.directory / "one.pgm"}
    done = subprocess.run(command("cnn-ctl", *(names.get(a, a) for a in arguments)), stdout=out,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    return done.returncode, done.stderr


def unread_pipe():
    """Returns the end for writing of a pipe that nobody reads."""
    ours, its = os.pipe()
    os.close(ours)
    return its


@pytest.mark.parametrize("arguments", PRINTS)
def test_a_reader_may_stop_reading(programs, trained, arguments):
    """The program that reads the output of cnn-ctl may exit early, as head does after some lines.
    In this case cnn-ctl ends silently, like other tools."""
    out = unread_pipe()
    try:
        assert prints_to(out, programs, trained, arguments) == (-signal.SIGPIPE, "")
    finally:
        os.close(out)


@pytest.mark.parametrize("arguments", PRINTS)
def test_a_full_disk_is_reported(programs, trained, arguments):
    with open("/dev/full", "wb") as out:
        code, text = prints_to(out, programs, trained, arguments)
    assert code == 10 and "cannot write to standard output" in text


@pytest.mark.parametrize("options", [("--once",), ("--once", "--json"), ("--json",)])
def test_the_reader_of_top_may_stop_reading(programs, options):
    server = programs.server("--model", "seed:4")
    out = unread_pipe()
    try:
        done = subprocess.run(command("cnn-ctl", "--server", server.endpoint, "top", *options),
                              stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(out)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_test_image_that_does_not_exist_exits_2(programs, trained, data):
    ctl = programs.ctl("predict", "--checkpoint", trained, "--data", data, 10000, code=2)
    assert "0 to 9999" in ctl.lines[0]
    assert ctl.out == [], "no title for images that do not follow"


def test_a_directory_without_a_checkpoint_exits_7(programs):
    ctl = programs.ctl("export", "--checkpoint", programs.directory, "x.safetensors", code=7)
    assert "holds no checkpoint" in ctl.lines[0]


# (arguments, what the message must contain): NONE does not exist, FILE is a file, DIR an empty
# directory, RUN a run
WRONG_PATHS = [
    (("history", "NONE"), "NONE: No such file or directory; give the --checkpoint-dir of a run"),
    (("report", "RUN", "NONE"), "NONE: No such file or directory; give the --checkpoint-dir of a run"),
    (("report", "NONE/run"), "NONE/run: No such file or directory; give"),
    (("show", "NONE"), "NONE: No such file or directory; give the --checkpoint-dir of a run"),
    (("show", "FILE"), "FILE: not a directory; give the --checkpoint-dir of a run"),
    (("export", "--checkpoint", "NONE", "w.safetensors"), "NONE: No such file .*--checkpoint: give"),
    (("predict", "--checkpoint", "FILE", "7"), "FILE: not a directory; --checkpoint: give"),
    (("eval", "--weights", "NONE"), "NONE: No such file or directory; --weights: give"),
    (("eval", "--weights", "DIR"), "DIR: not a regular file; --weights: give"),
    (("export", "--checkpoint", "RUN", "NONE/w.safetensors"), "NONE: No such file or directory; expected"),
    (("export", "--checkpoint", "RUN", "-"), "\"-\" is no name of a file"),
    (("export", "--checkpoint", "RUN", "DIR"), "DIR: not a regular file; expected the path"),
    (("export", "--checkpoint", "RUN", "FILE/w.onnx"), "FILE: (Not|not) a directory; expected the path"),
    (("eval", "--checkpoint", "RUN", "--mistakes", "DIR"), "DIR: not a regular file; expected"),
    (("eval", "--checkpoint", "RUN", "--predictions", "DIR"), "--predictions: .*DIR: .*Is a directory"),
    (("history", "--tensorboard", "FILE/a", "RUN"), "FILE/a: cannot create the directory: Not a dir"),
    (("keygen", "FILE"), "FILE: not a directory"),
]


@pytest.mark.parametrize("arguments, words", WRONG_PATHS, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_a_wrong_path_exits_2_and_says_what_is_right(programs, trained, data, arguments, words):
    """A wrong path is no failure of the disk, whose status is 10."""
    place = programs.directory
    (place / "FILE").write_text("x")
    (place / "DIR").mkdir()
    names = {"RUN": str(trained)}
    arguments = [names.get(a, str(place / a) if a.split("/")[0] in ("NONE", "FILE", "DIR") else a)
                 for a in arguments]
    ctl = programs.ctl(*(["--data", data] if arguments[0] in ("eval", "predict") else []), *arguments, code=2)
    assert len(ctl.lines) == 1 and not ctl.out, ctl.tail()
    assert re.search(words, ctl.lines[0]), ctl.lines
    assert not list(place.glob("*.tmp")) and not (place / "NONE").exists()


@pytest.mark.parametrize("arguments, code", [(("history", "DIR"), 6), (("report", "DIR"), 6),
                                             (("show", "DIR"), 7), (("history", "FILE"), 6)])
def test_a_directory_that_is_not_of_a_run_is_refused(programs, arguments, code):
    (programs.directory / "FILE").write_text("x\n")
    (programs.directory / "DIR").mkdir()
    ctl = programs.ctl(arguments[0], programs.directory / arguments[1], code=code)
    assert len(ctl.lines) == 1 and not ctl.out and "; give the --checkpoint-dir of a run" in ctl.lines[0]


def test_eval_ends_when_nobody_reads_it(programs, data):
    """The program that reads the output of eval has ended before eval has a result. eval must then
    stop before it has evaluated all images, unless an option makes it write a file, too."""
    server = programs.server("--model", "cnn99")
    weights = programs.directory / "w.safetensors"
    programs.ctl("--server", server.endpoint, "export", weights)
    out, seconds = unread_pipe(), []
    try:
        for file in ((), ("--predictions", programs.directory / "all.csv")):
            begun = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            done = subprocess.run(command("cnn-ctl", "--data", data, "eval", "--weights", weights, *file),
                                  stdout=out, stderr=subprocess.PIPE, text=True, timeout=120)
            seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begun)
            assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
    finally:
        os.close(out)
    assert (programs.directory / "all.csv").read_text().count("\n") == 10001
    assert seconds[0] < seconds[1] / 2, seconds


def test_no_server_exits_3_in_time(programs):
    ctl = programs.ctl("--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", 1000, "status",
                       code=3, seconds=5)
    assert "no contact within 1000 ms: connection refused; start one with: cnn-ps --bind" in ctl.lines[0]


def test_the_example_fits_a_line(programs):
    server = programs.server("--model", "vector:2", "--optimizer", "sgd", "--lr", 0.5)
    fleet = [programs.add(Process("line", command("examples/line", server.endpoint)))
             for _ in range(2)]
    for line in fleet:
        assert line.wait(30) == 0, line.tail()
        a, b = (float(text.split("=")[1]) for text in line.out[0].split())
        assert a == pytest.approx(2, abs=0.1) and b == pytest.approx(-1, abs=0.1)


ENDLESS = ("--model", "seed:8", "--epochs", 1000)


def test_a_worker_says_which_kernels_its_model_uses(programs, small):
    server = programs.server("--model", "conv:8:5 relu pool:2 fc:10", "--epochs", 1,
                             "--max-updates", 3)
    worker = programs.worker(server.endpoint, data=small)
    assert server.wait(20) == 0
    said = worker.line(r'level=info msg="worker kernels" layers="(.+)" device="cpu .+" batch=\d+$')[1]
    assert re.fullmatch(r"conv1=\w+/\w+/none fc1=\w+/\w+/\w+", said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_worker_that_is_asked_to_stop_leaves_nothing_behind(programs, small, number):
    """SIGTERM, SIGINT and SIGUSR1 stop a worker: Slurm sends SIGUSR1 as a warning. SIGUSR2 has no
    effect."""
    server = programs.server(*ENDLESS)
    worker = programs.worker(server.endpoint, data=small)
    worker.line("worker connected")
    worker.signal(signal.SIGUSR2)
    until(lambda: server.status()["images"] > 1000, 20, "training")
    worker.signal(number)
    assert worker.wait(5) == 12, worker.tail()
    worker.line("worker stopped", 0.1)
    until(lambda: server.status()["live_workers"] == 0, 1, "it said goodbye")
    server.line("worker gone")


def test_a_worker_is_asked_to_stop_while_there_is_no_server(programs, small):
    worker = programs.worker("tcp://127.0.0.1:1", data=small)
    worker.line("worker data")
    worker.signal(SIGTERM)
    assert worker.wait(5) == 12, worker.tail()


def test_a_second_worker_of_a_name_ends_the_first_with_5(programs, small):
    server = programs.server(*ENDLESS)
    first = programs.worker(server.endpoint, "--name", "bob", data=small)
    first.line("worker connected")
    second = programs.worker(server.endpoint, "--name", "bob", data=small)
    second.line("worker connected.*incarnation=2")
    assert first.wait(10) == 5, first.tail()
    here = socket.gethostname()[:27]
    first.line(rf'level=error msg="worker end" code=PS_EFENCED .*--name \\"bob\\": this one runs on '
               rf"{here} pid {first.popen.pid}, the new one on {here} pid {second.popen.pid}; give each "
               "worker its own --name or none", 0.1)
    server.line(rf'level=warn msg="worker fenced" .*name="bob" .*pid={first.popen.pid} .*'
                rf"new_pid={second.popen.pid} .*--name")
    found = server.status()["workers"][0]
    assert (found["host"], found["pid"]) == (socket.gethostname()[:64], second.popen.pid)
    assert second.running()


def test_a_worker_on_a_terminal_draws_its_progress(programs, small):
    """On a terminal the last line shows the progress, and the worker removes this line at its end.
    If stderr is a file, the worker draws no such line."""
    server = programs.server("--model", "seed:8", "--epochs", 1000)
    other = programs.worker(server.endpoint, data=small)
    ours, its = pty.openpty()
    worker = subprocess.Popen(command("cnn-worker", "--server", server.endpoint, "--data", small,
                                      "--threads", 1), stderr=its,
                              stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(its)
    text = b""

    def shown():
        nonlocal text
        if select.select([ours], [], [], 0.1)[0]:
            text += os.read(ours, 65536)
        return re.search(
            rb"worker \d  epoch \d+/1000: +(\d+) % \[#*\.*\]  [1-9]\d* images/s  [1-9]\d* push",
            text)
    try:
        found = until(shown, 30, "the bar")
        assert int(found[1]) <= 100
        programs.ctl("--server", server.endpoint, "drain")
        assert worker.wait(20) == 12 and other.wait(20) == 12
    finally:
        worker.kill()
        text += rest_of(ours)
    last = text.rindex(b"epoch ")
    assert b"\r\x1b[K" in text[last:], "the bar is removed"
    assert not any("#" in line for line in other.lines)

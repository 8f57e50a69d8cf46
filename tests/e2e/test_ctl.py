"""cnn-ctl against real servers, checkpoints and pictures; the example program; a worker's ends."""
import json
import struct
import zlib

import numpy as np
import pytest

import idx
from flavour import command
from lab import SIGTERM, Process, until


def png(pixels):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def pgm(pixels):
    return b"P5\n%d %d\n255\n" % pixels.shape[::-1] + pixels.tobytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """A checkpoint directory of a network that knows its digits a little."""
    from lab import Lab
    directory = tmp_path_factory.mktemp("trained")
    lab = Lab(directory, data)
    server = lab.server("--model", "seed:8", "--epochs", 1)
    lab.worker(server.endpoint)
    server.result()
    lab.close()
    return directory / "ckpt"


def answers(ctl):
    """(image, class, per cent, words after it) of each picture that was drawn."""
    rows = (line.partition(": ") for line in ctl.out if "%" in line and ": " in line)
    return [(name, int(rest.split()[0]), float(rest.split("(")[1].split()[0]), rest.partition("),")[2])
            for name, _, rest in rows]


def test_status_is_json(lab):
    server = lab.server("--model", "vector:3", "--seed", 9)
    status = json.loads("\n".join(lab.ctl("--server", server.endpoint, "status").out))
    assert (status["model"], status["seed"], status["updates"]) == ("vector:3", 9, 0)


def test_top_off_a_terminal_is_one_screen(lab):
    server = lab.server("--model", "vector:3")
    screen = "\n".join(lab.ctl("--server", server.endpoint, "top").out)
    assert "model vector:3" in screen and "updates 0" in screen and "worker" in screen


def test_checkpoint_is_on_disk_when_it_is_answered(lab):
    server = lab.server("--model", "vector:3", "--checkpoint-ms", 3600000)
    word, generation = lab.ctl("--server", server.endpoint, "checkpoint").out[0].split()
    assert word == "generation"
    assert (server.directory / f"ckpt-{int(generation):016x}").exists()


def test_drain_ends_the_server_with_0(lab):
    server = lab.server("--model", "vector:3")
    lab.ctl("--server", server.endpoint, "drain")
    assert server.wait(10) == 0, server.tail()


def test_export_from_the_server_and_from_its_checkpoint_are_the_same(lab):
    server = lab.server("--model", "lenet5", "--epochs", 1)
    live = lab.export(server.endpoint, "live.safetensors").read_bytes()
    lab.ctl("--server", server.endpoint, "drain")
    assert server.wait(10) == 0
    assert lab.export(server.directory, "kept.safetensors").read_bytes() == live


def test_predict_names_test_images(lab, trained, data):
    images = list(range(20))
    labels = idx.read(data, idx.NAMES[3])[:20]
    found = answers(lab.ctl("predict", "--checkpoint", trained, "--data", data, *images))
    assert [int(name) for name, *_ in found] == images
    right = 0
    for (_, best, percent, words), label in zip(found, labels):
        assert f"label {label}" in words and ("wrong" in words) == (best != label)
        assert 10 <= percent <= 100
        right += best == label
    assert right >= 13, found


def test_predict_sees_the_same_in_every_form_of_a_picture(lab, trained, data):
    pixels = idx.read(data, idx.NAMES[2])[0]
    (lab.directory / "a.pgm").write_bytes(pgm(pixels))
    (lab.directory / "b.png").write_bytes(png(pixels))
    weights = lab.export(trained, "weights.safetensors")
    by_checkpoint = lab.ctl("predict", "--checkpoint", trained, "--data", data, 0,
                            lab.directory / "a.pgm", lab.directory / "b.png")
    by_weights = lab.ctl("predict", "--weights", weights, "--model", "seed:8",
                         lab.directory / "a.pgm")
    found = answers(by_checkpoint) + answers(by_weights)
    assert len(found) == 4 and len({(best, percent) for _, best, percent, _ in found}) == 1


def test_predict_draws_the_picture(lab, trained):
    pixels = np.zeros((28, 28), np.uint8)
    pixels[0, 0] = pixels[3, 1] = pixels[26:28, 27] = 255
    (lab.directory / "dots.pgm").write_bytes(pgm(pixels))
    lines = lab.ctl("predict", "--checkpoint", trained, lab.directory / "dots.pgm").out
    assert lines[1][0] == "\u2580" and lines[2][1] == "\u2584" and lines[14][27] == "\u2588"
    bars = [line[28:].split() for line in lines[3:13]]
    assert [int(bar[0]) for bar in bars] == list(range(10))
    assert sum(float(bar[1]) for bar in bars) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("name, content", {
    "empty": b"", "text": b"hello", "half": pgm(np.zeros((28, 28), np.uint8))[:400],
    "small": pgm(np.zeros((27, 28), np.uint8)), "large": png(np.zeros((280, 280), np.uint8)),
    "huge": b"P5\n99999 99999\n255\n", "cut": png(np.zeros((28, 28), np.uint8))[:50],
}.items())
def test_bad_picture_exits_6_and_is_named(lab, trained, name, content):
    (lab.directory / name).write_bytes(content)
    ctl = lab.ctl("predict", "--checkpoint", trained, lab.directory / name, code=6)
    assert len(ctl.lines) == 1 and name in ctl.lines[0] and not ctl.out, ctl.tail()


def test_a_test_image_that_does_not_exist_exits_2(lab, trained, data):
    ctl = lab.ctl("predict", "--checkpoint", trained, "--data", data, 10000, code=2)
    assert "0 to 9999" in ctl.lines[0]


def test_a_directory_without_a_checkpoint_exits_7(lab):
    ctl = lab.ctl("export", "--checkpoint", lab.directory, "x.safetensors", code=7)
    assert "holds no checkpoint" in ctl.lines[0]


def test_no_server_exits_3_in_time(lab):
    ctl = lab.ctl("--server", "tcp://127.0.0.1:1", "--connect-ms", 300, "status", code=3, seconds=5)
    assert "no answer within 300 ms" in ctl.lines[0]


def test_the_example_fits_a_line(lab):
    server = lab.server("--model", "vector:2", "--optimizer", "sgd", "--lr", 0.5)
    crew = [lab.add(Process("line", command("examples/line", server.endpoint))) for _ in range(2)]
    for line in crew:
        assert line.wait(30) == 0, line.tail()
        a, b = (float(text.split("=")[1]) for text in line.out[0].split())
        assert a == pytest.approx(2, abs=0.1) and b == pytest.approx(-1, abs=0.1)


ENDLESS = ("--model", "seed:8", "--epochs", 1000)


def test_a_worker_that_is_asked_to_stop_leaves_nothing_behind(lab, small):
    server = lab.server(*ENDLESS)
    worker = lab.worker(server.endpoint, data=small)
    until(lambda: server.status()["images"] > 1000, 20, "training")
    worker.signal(SIGTERM)
    assert worker.wait(5) == 0, worker.tail()
    worker.line("info worker stopped", 0.1)
    until(lambda: server.status()["live_workers"] == 0, 1, "it said goodbye")
    server.line("info worker gone")


def test_a_worker_is_asked_to_stop_while_there_is_no_server(lab, small):
    worker = lab.worker("tcp://127.0.0.1:1", data=small)
    worker.line("info worker data")
    worker.signal(SIGTERM)
    assert worker.wait(5) == 0, worker.tail()


def test_a_second_worker_of_a_name_ends_the_first_with_5(lab, small):
    server = lab.server(*ENDLESS)
    first = lab.worker(server.endpoint, "--name", "bob", data=small)
    first.line("info worker connected")
    second = lab.worker(server.endpoint, "--name", "bob", data=small)
    second.line("info worker connected.*incarnation=2")
    assert first.wait(10) == 5, first.tail()
    assert second.running()

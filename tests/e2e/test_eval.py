"""Test cnn-ctl eval, which prints accuracy, loss, the classes that the network confuses, and the
worst mistakes."""
import csv
import json
import re
import struct

import numpy as np
import pytest

from support import idx
from support.programs import Programs, until


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small):
    """Returns the checkpoint directory of a network after one epoch of the small data set."""
    programs = Programs(tmp_path_factory.mktemp("trained"), small)
    programs.train(1, "--model", "seed:8", "--epochs", 1)
    programs.close()
    return programs.directory / "ckpt"


def linear(path, classes, weight, images=""):
    """Write the weights of a model with the single layer fc:CLASSES to a file."""
    header, at, data = {"__metadata__": {"format": "pt", "model": f"{images}fc:{classes}"}}, 0, b""
    for name, t in (("fc1.weight", weight), ("fc1.bias", np.zeros(classes))):
        raw = t.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        at, data = at + len(raw), data + raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


OTHER_DATA = r"is not the data set of the run: its fingerprint is \w{16}, the run has \w{16}"


def test_another_data_set_than_that_of_the_run_is_named(programs, trained, small, data):
    """Both a checkpoint and a running server contain the fingerprint of the run's data set."""
    server = programs.server("--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["data"]["fixed"], 30, "a data set")
    for source in (("--checkpoint", trained), ("--server", server.endpoint)):
        for place in (small, data):
            evaluated = programs.ctl("eval", *source, "--data", place)
            predicted = programs.ctl("predict", *source, "--data", place, 0, 7)
            assert predicted.out[0] == f"test images of {place}:"
            for found in evaluated, predicted:
                warnings = [line for line in found.lines if re.search(OTHER_DATA, line)]
                assert len(warnings) == (place == data), found.tail()
                assert all(str(place) in line and "--data" in line for line in warnings)


def one_hot(directory, pairs):
    """Write test images with one white pixel each. `pairs` has the pair (index of the white pixel,
    label) of each image."""
    images = np.zeros((len(pairs), 28, 28), np.uint8)
    for image, (pixel, _) in zip(images, pairs):
        image.flat[pixel] = 255
    labels = np.array([label for _, label in pairs], np.uint8)
    directory.mkdir()
    for name, array in zip(idx.NAMES, (images[:1], labels[:1], images, labels)):
        (directory / name).write_bytes(idx.encode(array))
    return directory


def table(ctl):
    """Returns the confusion matrix that cnn-ctl has printed."""
    at = ctl.out.index("label   class that the network assigns")
    rows = [line.split() for line in ctl.out[at + 2:at + 12]]
    assert [row[0] for row in rows] == ctl.out[at + 1].split() == [str(i) for i in range(10)]
    return np.array([[0 if cell == "." else int(cell) for cell in row[1:]] for row in rows])


def test_accuracy_and_loss_are_those_of_the_run(programs, trained, small):
    found = programs.ctl("eval", "--checkpoint", trained, "--data", small)
    history = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    last = [o for o in history if o["kind"] == "epoch"][-1]
    assert f"1000 test images, accuracy {last['accuracy']:.4f} " in found.out[0]
    assert abs(float(found.out[0].rpartition("loss ")[2]) - last["test_loss"]) < 1e-4
    labels = idx.read(small, idx.NAMES[3])
    matrix = table(found)
    assert (matrix.sum(1) == np.bincount(labels)).all()
    assert abs(matrix.trace() / 1000 - last["accuracy"]) < 1e-9


def test_each_image_is_in_the_predictions(programs, trained, small):
    file = programs.directory / "p.csv"
    found = programs.ctl("eval", "--checkpoint", trained, "--data", small, "--predictions", file)
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [int(r["image"]) for r in rows] == list(range(1000))
    assert [int(r["label"]) for r in rows] == list(idx.read(small, idx.NAMES[3]))
    matrix = np.zeros((10, 10), int)
    np.add.at(matrix, ([int(r["label"]) for r in rows], [int(r["class"]) for r in rows]), 1)
    assert (matrix == table(found)).all()
    wrong = {f"image {r['image']}: {r['class']}" for r in rows if r["label"] != r["class"]}
    drawn = [" ".join(line.split()[:3]) for line in found.out if line.startswith("image ")]
    assert len(set(drawn)) == 3 and set(drawn) <= wrong


def test_mistakes_are_drawn_on_a_contact_sheet(programs):
    """A contact sheet shows the three images that the model classifies wrongly, with known
    probabilities."""
    weight = np.zeros((10, 784))
    for pixel in range(10):
        weight[pixel % 10, pixel] = 2 + pixel
    weights = linear(programs.directory / "w.safetensors", 10, weight)
    place = one_hot(programs.directory / "data", [(3, 3), (4, 9), (5, 1), (6, 6), (2, 8)])
    png = programs.directory / "worst.png"
    found = programs.ctl("eval", "--weights", weights, "--data", place, "--mistakes", png)
    assert "5 test images, accuracy 0.4000 (3 wrong)" in found.out[0]
    assert [line.split(":")[0] for line in found.out if line.startswith("image ")] == [
        "image 2", "image 1", "image 4"]
    assert f"{png}: the 3 mistakes with the greatest loss" in found.out[-1]
    image = pixels_of(png)
    assert image.shape[2] == 3 and (image[0, 0] == 255).all()
    blacks = (image.sum(2) == 0).sum()
    assert blacks > 0.9 * 3 * 784 * 9, "three pictures, each pixel 3 x 3"
    white = np.argwhere(image[12:12 + 84, 12:12 + 84].sum(2) == 3 * 255)
    assert (white // 3 == [0, 5]).all() and len(white) == 9, "image 2 has pixel 5"


def test_classes_have_the_names_of_classes_txt(programs):
    """In the table, the name of a class is at the end of its row, and the columns have only the
    numbers of the classes. Outside the table, cnn-ctl prints the name of a class beside its
    number."""
    weights = linear(programs.directory / "w.safetensors", 10, 9 * np.eye(10, 784))
    place = one_hot(programs.directory / "data", [(3, 3), (4, 9), (4, 9), (0, 2)])
    names = ["ankle boot", "bag", "coat", "dress", "\u540d\u524d\x1b[31m", "f", "g", "h", "i", "a very long name of a class"]
    (place / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    png = programs.directory / "worst.png"
    source = ("--weights", weights, "--data", place)
    found = programs.ctl("eval", *source, "--mistakes", png)
    rows = [re.match(r" +\d(?: +(?:\d+|\.)){10}  (.*)", line) for line in found.out]
    assert [row[1] for row in rows if row] == [name.replace("\x1b", "?") for name in names], found.tail()
    assert any(re.match(r"image \d: 4 \u540d\u524d\?\[31m \(\d.*\), label 9 a very long name of a class, wrong", line)
               for line in found.out), found.tail()
    assert "\x1b" not in "".join(found.out)
    predicted = programs.ctl("predict", *source, 0).out
    assert re.match(r"0: 3 dress \(\d.*\), label 3 dress$", predicted[1]), predicted
    assert any(re.search(r" 0 ankle boot +\d+\.\d %", line) for line in predicted)
    assert any(re.search(r" 9 a very long name +\d+\.\d %", line) for line in predicted)
    (place / "classes.txt").write_text("".join(f"{name}\n" for name in names) + "\n \n")
    assert programs.ctl("predict", *source, 0).out[1].startswith("0: 3 dress ("), "empty lines at the end"
    (place / "classes.txt").write_text("".join(f"{i}\n" for i in range(11)))
    assert programs.ctl("predict", *source, 0).out[1].startswith("0: 3 (")


def test_a_name_that_the_contact_sheet_cannot_show_is_a_number(programs):
    """The letters of the contact sheet are those of ASCII. In place of another name, the sheet shows
    "class" and the number of the class, and cnn-ctl lists number and name."""
    weights = linear(programs.directory / "w.safetensors", 10, 9 * np.eye(10, 784))
    place = one_hot(programs.directory / "data", [(0, 1), (2, 3)])
    source = ("--weights", weights, "--data", place)

    def sheet(*names):
        (place / "classes.txt").write_text("".join(f"{name}\n" for name in names))
        png = programs.directory / "worst.png"
        found = programs.ctl("eval", *source, "--mistakes", png)
        return pixels_of(png), found.out[found.out.index(f"{png}: the 2 mistakes with the greatest loss") + 1:]
    shown, listed = sheet("T-shirt/top", "\u732b", "\u00e9tude", "dress", "\u540d")
    assert [line.split() for line in listed] == [
        ["classes", "that", "the", "picture", "shows", "without", "their", "names:"], ["1", "\u732b"],
        ["2", "\u00e9tude"]]
    same, listed = sheet("T-shirt/top", "class 1", "class 2", "dress", "bag")
    assert listed == [] and shown.shape == same.shape and (shown == same).all()
    other, _ = sheet("T shirt top", "class 1", "class 2", "dress", "bag")
    assert (other != same).any(), "- and / are not blanks"


def test_the_worst_of_many_certain_mistakes_come_first(programs):
    """The network assigns a probability that rounds to 1 to all wrong classes."""
    weight = np.zeros((10, 784))
    for pixel in range(10):
        weight[pixel, pixel] = 20 + 5 * pixel
    weights = linear(programs.directory / "w.safetensors", 10, weight)
    place = one_hot(programs.directory / "data", [(1, 0), (3, 0), (2, 0), (9, 0)])
    found = programs.ctl("eval", "--weights", weights, "--data", place)
    assert [line.split(":")[0] for line in found.out if line.startswith("image ")] == [
        "image 3", "image 1", "image 2"]


def test_large_pictures_in_colour_are_smaller_on_the_sheet(programs):
    """An image of 200 x 200 pixels becomes 100 x 100: the sheet shows every second pixel."""
    images = np.zeros((1, 3, 200, 200), np.uint8)
    images[0, 0, ::2, ::2], images[0, 1] = 255, 9
    (programs.directory / "data").mkdir()
    labels = np.ones(1, np.uint8)
    for name, array in zip(idx.NAMES, (images, labels, images, labels)):
        (programs.directory / "data" / name).write_bytes(idx.encode(array))
    weights = linear(programs.directory / "w.safetensors", 2, np.zeros((2, 120000)),
                     "input:3x200x200 ")
    png = programs.directory / "worst.png"
    programs.ctl("eval", "--weights", weights, "--data", programs.directory / "data",
                 "--mistakes", png)
    assert (pixels_of(png)[12:112, 12:112] == [255, 9, 0]).all()


def pixels_of(png):
    """Decode a PNG file in colour with 8 bits per channel and without interlacing. Returns its
    pixels."""
    import zlib
    raw = png.read_bytes()
    width, height, bits, colour = struct.unpack(">IIBB", raw[16:26])
    assert (bits, colour) == (8, 2)
    at, data = 8, b""
    while at < len(raw):
        size, kind = struct.unpack(">I4s", raw[at:at + 8])
        data += raw[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    stride = 3 * width
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, stride + 1)
    out = np.zeros((height, stride), np.int64)
    for y, (kind, row) in enumerate(zip(lines[:, 0], lines[:, 1:].astype(np.int64))):
        above = out[y - 1] if y else np.zeros(stride, np.int64)
        for x in range(stride):
            a, b, c = (out[y, x - 3] if x > 2 else 0), above[x], (above[x - 3] if x > 2 else 0)
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            out[y, x] = (row[x] + (0, a, b, (a + b) // 2, nearest)[kind]) % 256
    return out.reshape(height, width, 3)


def test_many_classes_are_a_list_of_confusions(programs):
    weight = np.zeros((30, 784))
    weight[np.arange(30), np.arange(30)] = 9
    weights = linear(programs.directory / "w.safetensors", 30, weight)
    pairs = [(i, i) for i in range(30)] + 3 * [(7, 29)] + 2 * [(1, 4)] + [(2, 3)]
    found = programs.ctl("eval", "--weights", weights, "--data",
                         one_hot(programs.directory / "data", pairs))
    at = found.out.index("label  class  images")
    assert [line.split() for line in found.out[at + 1:at + 5]] == [
        ["29", "7", "3"], ["4", "1", "2"], ["3", "2", "1"], []]


def test_a_network_without_mistakes_has_no_sheet(programs):
    weights = linear(programs.directory / "w.safetensors", 10, np.eye(10, 784))
    place = one_hot(programs.directory / "data", [(i, i) for i in range(10)])
    png = programs.directory / "worst.png"
    found = programs.ctl("eval", "--weights", weights, "--data", place, "--mistakes", png)
    assert "accuracy 1.0000 (0 wrong)" in found.out[0] and not png.exists()
    assert found.out[-1] == f"no mistakes: {png} was not written"


def test_a_network_of_many_classes_without_mistakes_has_no_table(programs):
    weights = linear(programs.directory / "w.safetensors", 40, np.eye(40, 784))
    place = one_hot(programs.directory / "data", [(i, i) for i in range(40)])
    found = programs.ctl("eval", "--weights", weights, "--data", place)
    assert "(0 wrong)" in found.out[0] and len(found.out) == 1


@pytest.mark.parametrize("classes,words", [(2, "labels are 0 to 3, the model has 2 classes")])
def test_images_that_do_not_fit_the_model_exit_6(programs, classes, words):
    weights = linear(programs.directory / "w.safetensors", classes, np.zeros((classes, 784)))
    place = one_hot(programs.directory / "data", [(0, 3), (1, 0)])
    programs.ctl("eval", "--weights", weights, "--data", place, code=6).line(words, 0.1)


def test_a_file_that_cannot_be_written_exits_with_its_name(programs, trained, small):
    for option in ("--mistakes", "--predictions"):
        ctl = programs.ctl("eval", "--checkpoint", trained, "--data", small, option,
                           programs.directory / "none/file", code=2)
        ctl.line("none.*No such file or directory", 0.1)

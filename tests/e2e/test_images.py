"""The programs convert, train or refuse images of other shapes than MNIST's, from memory and from
disk.

The tests make small files in the formats of CIFAR, EMNIST and NumPy, and small pictures.
"""
import zlib

import numpy as np
import pytest

from support import idx, safetensors
from support.programs import SIGTERM, until

SHORT = ["--epochs", "1", "--batch-size", "20", "--optimizer", "sgd", "--lr", "0.01"]


def cifar(directory, kind, n):
    """Write binary files in the format of CIFAR-10 or CIFAR-100, with `n` training images and 20
    test images. Returns all images and labels."""
    rng = np.random.default_rng(kind)
    labels = rng.integers(0, kind, n + 20, dtype=np.uint8)
    pixels = rng.integers(0, 256, (n + 20, 3, 32, 32), dtype=np.uint8)
    pixels[:, 0] //= 1 + labels[:, None, None] % 3
    head = [labels] if kind == 10 else [labels // 5, labels]
    rows = np.concatenate([np.stack(head, 1), pixels.reshape(n + 20, -1)], 1)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if kind == 10 else ["train.bin"]
    for name, part in zip(names, np.array_split(rows[:n], len(names))):
        (directory / name).write_bytes(part.tobytes())
    (directory / ("test_batch.bin" if kind == 10 else "test.bin")).write_bytes(rows[n:].tobytes())
    return pixels, labels


def make_idx(directory, images, labels, n, names=idx.NAMES):
    directory.mkdir(exist_ok=True)
    for name, array in zip(names, (images[:n], labels[:n], images[n:], labels[n:])):
        (directory / name).write_bytes(idx.encode(array))


def colours(directory, n=60, side=8, classes=3, tests=10):
    """Write a data set of `n` small training images with three channels."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (n + tests, 3, side, side), dtype=np.uint8)
    make_idx(directory, images, rng.integers(0, classes, n + tests).astype(np.uint8), n)
    return images


def png(pixels):
    def chunk(kind, body):
        data = kind + body
        return len(body).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, colour, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


@pytest.mark.parametrize("kind", [10, 100])
def test_cifar_is_converted_and_trained(programs, kind):
    source, target = programs.directory / "bin", programs.directory / "idx"
    source.mkdir()
    pixels, labels = cifar(source, kind, 100)
    ctl = programs.ctl("convert", source, target)
    assert ctl.out == [f"{target}: 100 training and 20 test images of 3x32x32, {kind} classes"]
    raw = (target / "train-images-idx4-ubyte").read_bytes()
    assert raw == idx.encode(pixels[:100])
    assert (target / "t10k-labels-idx1-ubyte").read_bytes() == idx.encode(labels[100:])
    result = programs.train(2, "--model", "cifar", "--classes", kind, *SHORT, data=target)
    assert result["images"] == 100
    file = programs.export(programs.directory / "ckpt")
    weights = safetensors.load(file)
    assert weights["conv1.weight"].shape == (32, 3, 3, 3)
    assert weights["fc2.weight"].shape == (kind, 512)
    ctl = programs.ctl("predict", "--weights", file, "--data", target, "0", "7")
    assert len([line for line in ctl.out if "label" in line]) == 2
    (programs.directory / "a.png").write_bytes(png(np.moveaxis(pixels[100], 0, 2)))
    other = programs.ctl("predict", "--weights", file, programs.directory / "a.png")
    answers = ctl.out[1:]  # leave out the first line, which is the directory of the images
    assert other.out[1:] == answers[1:len(other.out)]


def test_converted_files_are_never_overwritten(programs):
    source, target = programs.directory / "bin", programs.directory / "idx"
    source.mkdir()
    cifar(source, 10, 100)
    programs.ctl("convert", source, target)
    before = {p.name: p.read_bytes() for p in target.iterdir()}
    ctl = programs.ctl("convert", source, target, code=2)
    ctl.line("exists already: name another directory", 0.1)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before


@pytest.mark.parametrize("damage,words", [
    (lambda d: (d / "test_batch.bin").write_bytes(bytes(3072)), "no multiple of 3073"),
    (lambda d: (d / "test_batch.bin").write_bytes(b"\x0a" + bytes(3072)), "label 10 of image 0"),
    (lambda d: (d / "data_batch_3.bin").unlink(), "data_batch_3.bin: No such file"),
    (lambda d: (d / "test_batch.bin").write_bytes(b""), "no test images"),
], ids=["size", "label", "missing", "empty"])
def test_bad_binaries_are_refused_and_leave_nothing(programs, damage, words):
    source, target = programs.directory / "bin", programs.directory / "idx"
    source.mkdir()
    cifar(source, 10, 100)
    damage(source)
    ctl = programs.ctl("convert", source, target, code=6)
    ctl.line(words, 0.1)
    assert not target.exists()


@pytest.mark.parametrize("names", [("train_images", "train_labels", "test_images", "test_labels"),
                                   ("x_train", "y_train", "x_test", "y_test")],
                                   ids=["plain", "keras"])
def test_numpy_arrays_are_converted(programs, names):
    source, target = programs.directory / "npy", programs.directory / "idx"
    source.mkdir()
    rng = np.random.default_rng(3)
    last = names[0] == "x_train"
    images = rng.integers(0, 256, (30, 3, 9, 7), dtype=np.uint8)
    labels = rng.integers(0, 1000, 30).astype(np.int64 if last else np.uint16)
    labels[0] = 999
    for name, part in zip(names[::2], (images[:20], images[20:])):
        np.save(source / f"{name}.npy", np.moveaxis(part, 1, 3).copy() if last else part)
    for name, part in zip(names[1::2], (labels[:20], labels[20:])):
        np.save(source / f"{name}.npy", part[:, None] if last else part)
    ctl = programs.ctl("convert", source, target)
    assert "20 training and 10 test images of 3x9x7, 1000 classes" in ctl.out[0]
    assert (target / "train-images-idx4-ubyte").read_bytes() == idx.encode(images[:20])
    raw = (target / "train-labels-idx1-ubyte").read_bytes()
    assert raw[:4] == b"\0\0\x0c\1" and (np.frombuffer(raw[8:], ">i4") == labels[:20]).all()
    result = programs.train(1, "--model", "input:3x9x7 fc:1000", *SHORT, data=target)
    assert result["images"] == 20


def test_bad_arrays_are_refused(programs):
    source = programs.directory / "npy"
    source.mkdir()
    good = {"train_images": np.zeros((4, 5, 5), np.uint8), "train_labels": np.arange(4),
            "test_images": np.zeros((2, 5, 5), np.uint8), "test_labels": np.arange(2)}
    for name, bad, words in [("train_images", np.zeros((4, 5, 5), np.float32),
                              "must have integers"),
                             ("train_images", np.zeros((4, 5, 5), np.int16), "dtype uint8"),
                             ("train_images", np.zeros((3, 5, 5), np.uint8),
                              "3 images and 4 labels"),
                             ("test_images", np.asfortranarray(np.zeros((2, 5, 6), np.uint8)),
                              "C order"),
                             ("test_images", np.zeros((2, 5, 6), np.uint8),
                              "images of 1x5x6, the training images are 1x5x5"),
                             ("test_labels", np.array([0, -1]), "label 1 is -1"),
                             ("train_labels", np.zeros((4, 2), np.int64), "one dimension")]:
        for key, array in good.items():
            np.save(source / f"{key}.npy", array)
        np.save(source / f"{name}.npy", bad)
        programs.ctl("convert", source, programs.directory / "idx", code=6).line(words, 0.1)
        assert not (programs.directory / "idx").exists()
    for key, array in good.items():
        np.save(source / f"{key}.npy", array)
    raw = (source / "train_images.npy").read_bytes()
    for n in range(0, len(raw), 7):
        (source / "train_images.npy").write_bytes(raw[:n])
        programs.ctl("convert", source, programs.directory / "idx", code=6)


def test_one_coloured_picture_makes_all_images_coloured(programs):
    """The first pictures of the directory are grey, and one later picture is red."""
    source, target = programs.directory / "pictures", programs.directory / "idx"
    grey = np.arange(30, dtype=np.uint8).reshape(6, 5)
    red = np.zeros((6, 5, 3), np.uint8)
    red[..., 0] = 200
    for name in "ant", "bee":
        (source / name).mkdir(parents=True)
        for i in range(10):
            (source / name / f"{i}.png").write_bytes(png(red if (name, i) == ("bee", 3) else grey))
    ctl = programs.ctl("convert", source, target)
    assert ctl.out == [f"{target}: 18 training and 2 test images of 3x6x5, 2 classes"] and not ctl.lines
    raw = (target / "train-images-idx4-ubyte").read_bytes()
    assert raw == idx.encode(np.stack([np.moveaxis(red, 2, 0) if i == 12 else np.stack([grey] * 3)
                                       for i in range(18)]))
    assert sorted(p.name for p in target.iterdir()) == [
        "classes.txt", "t10k-images-idx4-ubyte", "t10k-labels-idx1-ubyte", "train-images-idx4-ubyte",
        "train-labels-idx1-ubyte"]


def test_convert_says_what_it_skips(programs):
    source, target = programs.directory / "pictures", programs.directory / "idx"
    for name in "ant", "bee", "cow":
        (source / name / "more").mkdir(parents=True)
        for i in range(10):
            if name != "cow":
                (source / name / f"{i}.png").write_bytes(png(np.zeros((6, 5), np.uint8)))
            (source / name / f"{i}.webp").write_bytes(b"")
    (source / "bee" / "photo.HEIC").write_bytes(b"")
    (source / "bee" / "README").write_bytes(b"")
    ctl = programs.ctl("convert", source, target)
    assert "18 training and 2 test images of 1x6x5, 3 classes" in ctl.out[0]
    assert ctl.lines == ["cnn-ctl: 1 class has no picture: cow",
                         "cnn-ctl: skipped 32 files that are not PNG, JPEG or PGM by their "
                         "names: 30 .webp, 1 .heic, 1 other"]


def test_a_refused_conversion_leaves_no_directory(programs):
    source, target = programs.directory / "pictures", programs.directory / "idx"
    (source / "ant").mkdir(parents=True)
    (source / "ant" / "a.webp").write_bytes(b"")
    programs.ctl("convert", source, target, code=6).line("no folder has a picture", 0.1)
    assert not target.exists()


@pytest.mark.parametrize("split", [True, False])
def test_folders_of_pictures_are_converted(programs, split):
    source, target = programs.directory / "pictures", programs.directory / "idx"
    rng = np.random.default_rng(5)
    made = {}
    for part in ("train", "test") if split else ("",):
        for label, name in enumerate(("ant", "bee", "cow")):
            folder = source / part / name
            folder.mkdir(parents=True)
            for i in range(20):
                made[part, label, i] = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
                (folder / f"{i:02d}.png").write_bytes(png(made[part, label, i]))
            (folder / "notes.txt").write_text("no picture")
    ctl = programs.ctl("convert", source, target)
    n, m = (60, 60) if split else (54, 6)
    assert f"{n} training and {m} test images of 3x6x5, 3 classes" in ctl.out[0]
    assert (target / "classes.txt").read_text() == "ant\nbee\ncow\n"
    images = np.frombuffer((target / "train-images-idx4-ubyte").read_bytes()[20:], np.uint8)
    first = made["train" if split else "", 0, 0]
    assert (images.reshape(n, 3, 6, 5)[0] == np.moveaxis(first, 2, 0)).all()
    labels = idx.read(target, "t10k-labels-idx1-ubyte")
    assert (np.bincount(labels) == m // 3).all()
    for name in ("train-images-idx4-ubyte", "train-labels-idx1-ubyte"):
        (target / name).unlink()
        (target / name.replace("train", "t10k")).unlink()
    ctl = programs.ctl("convert", source, target, code=2)
    ctl.line("classes.txt: exists already: name another directory", 0.1)
    assert [path.name for path in target.iterdir()] == ["classes.txt"]
    (source / ("train" if split else "") / "cow" / "99.png").write_bytes(
        png(np.zeros((6, 6, 3), np.uint8)))
    ctl = programs.ctl("convert", source, programs.directory / "other", code=6)
    ctl.line(r"99.png: is 6x6 pixels, the first picture 5x6", 0.1)
    assert not (programs.directory / "other").exists()


def test_a_directory_without_images_is_refused(programs):
    place = programs.directory / "empty"
    place.mkdir()
    programs.ctl("convert", place, programs.directory / "idx", code=6).line("has neither CIFAR",
                                                                            0.1)
    programs.ctl("convert", place / "none", place, code=6).line("is no directory", 0.1)


def test_letters_of_emnist_train_under_their_own_names(programs):
    place = programs.directory / "emnist"
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (120, 28, 28), dtype=np.uint8)
    labels = rng.integers(1, 27, 120).astype(np.uint8)
    labels[0] = 26
    make_idx(place, images, labels, 100, [
        f"emnist-letters-{n}" for n in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "test-images-idx3-ubyte", "test-labels-idx1-ubyte")])
    result = programs.train(1, "--model", "seed:4", "--classes", "26", *SHORT, data=place)
    assert result["images"] == 100
    assert safetensors.load(programs.export(programs.directory / "ckpt"))["fc1.weight"].shape[0] == 26


def test_a_worker_with_other_images_is_refused_with_both_shapes(programs, data):
    colours(programs.directory / "colour")
    server = programs.server("--input", "3x8x8", "--classes", "3", "--model", "fc:3", *SHORT)
    worker = programs.worker(server.endpoint)
    assert worker.wait(20) == 6
    worker.line(r"the run's model is for images of 3x8x8, 3 classes, the images of this worker are "
                r"1x28x28, 10 classes", 0.1)
    other = programs.worker(server.endpoint, data=programs.directory / "colour")
    assert server.result()["images"] == 60 and other.wait(10) == 0


def test_labels_that_the_model_lacks_are_refused(programs):
    colours(programs.directory / "colour", classes=5)
    server = programs.server("--model", "input:3x8x8 fc:3", *SHORT)
    worker = programs.worker(server.endpoint, data=programs.directory / "colour")
    assert worker.wait(20) == 6
    worker.line(r"for images of 3x8x8, 3 classes; the images of --data are 3x8x8, 5 classes", 0.1)


def test_a_run_keeps_its_images(programs):
    colours(programs.directory / "colour")
    programs.train(1, "--input", "3x8x8", "--model", "norm:0.5:0.25 flip fc:3", *SHORT,
                   data=programs.directory / "colour")
    server = programs.server("--model", "fc:3", *SHORT)
    assert server.wait(20) == 7
    server.line(r"input:3x8x8 norm:0.5:0.25 flip fc:3.*, not .*fc:3", 0.1)
    server = programs.server("--model", "input:3x8x8 norm:0.5:0.25 flip fc:3", *SHORT)
    assert server.wait(20) == 0


@pytest.mark.parametrize("model", ["fc:3", "shift:2 flip fc:3"])
@pytest.mark.parametrize("mode", [[], ["--n-push", "4", "--n-fetch", "4"], ["--mode", "easgd"]],
                         ids=["plain", "several", "easgd"])
def test_images_on_the_disk_train_as_those_in_memory(programs, model, mode):
    """A run that reads its images from disk uses the same bytes in the same order as a run with the
    images in memory. The final weights must therefore be equal, except for rounding if the device
    makes the local steps."""
    place = programs.directory / "colour"
    # 2,500 test images, so that the server divides an evaluation into several grants
    colours(place, n=400, side=32, tests=2500)
    rest = [] if mode[:1] == ["--mode"] else ["--optimizer", "sgd", "--lr", "0.01"]
    weights, losses = [], []
    for i, limit in enumerate(([], ["--data-memory-mb", "1"])):
        server = programs.server("--input", "3x32x32", "--model", model, "--epochs", "2",
                                 "--batch-size", "30", *rest, *mode, directory=f"ckpt{i}")
        worker = programs.worker(server.endpoint, *limit, data=place)
        result = server.result()
        assert result["images"] == 800 and worker.wait(10) == 0
        losses.append((result["accuracy"], [e["test_loss"] for e in result["epoch_records"]]
                       if "epoch_records" in result else result["loss"]))
        weights.append(programs.export(programs.directory / f"ckpt{i}", f"{i}.st").read_bytes())
    # The device makes the local steps of this model only if the images are in memory. These steps
    # round differently from the steps of the run that reads its images from disk.
    if "--n-push" in mode and model == "fc:3":
        a, b = (safetensors.load(programs.directory / f"{i}.st") for i in range(2))
        assert all(np.abs(a[k] - b[k]).max() < 1e-6 for k in a)
    else:
        assert weights[0] == weights[1] and losses[0] == losses[1]


def test_a_file_that_shrinks_ends_the_worker_with_status_6(programs):
    place = programs.directory / "colour"
    colours(place, n=400, side=32)
    server = programs.server("--model", "input:3x32x32 fc:3", "--epochs", "5000", "--batch-size",
                             "10")
    worker = programs.worker(server.endpoint, "--data-memory-mb", "1", data=place)
    until(lambda: server.status()["images"] > 0, 20, "an image is counted")
    with (place / "train-images-idx3-ubyte").open("r+b") as f:
        f.truncate(5000)
    assert worker.wait(30) == 6
    worker.line(r"train-images-idx3-ubyte: has become shorter: nothing is at offset", 0.1)


@pytest.mark.parametrize("arguments,words", [
    (["--input", "3x32"], None),
    (["--input", "32"], "--input: .*expected CHANNELSxROWSxCOLUMNS"),
    (["--input", "3x0x5"], "--input"),
    (["--input", "3x32x32", "--model", "input:1x28x28 fc:10"], "is not the input 1x28x28"),
    (["--classes", "1"], "classes"),
    (["--classes", "65537"], "classes"),
    (["--classes", "12", "--model", "fc:10"], "--classes: 12, but the last layer .* fc:10"),
    (["--input", "3x8x8", "--model", "vector:10"], "vector:N has no images"),
    (["--input", "auto", "--model", "blob:3 fc:10"], "blob"),
    (["--input", "auto", "--model", "input:3x8x8 fc:10"], "names its input"),
    (["--input", "auto", "--model", "vector:10"], "names its input"),
    (["--input", "auto", "--epochs", "0", "--model", "fc:10"], "needs a data set"),
    (["--model", "norm:0.5:0 fc:10"], "norm"),
    (["--model", "flip fc:10", "--mode", "sandblaster"], "lbfgs"),
], ids=lambda row: " ".join(row) if isinstance(row, list) else "")
def test_bad_images_are_refused_at_the_start(programs, arguments, words):
    extra = [] if "--model" in arguments else ["--model", "fc:10"] if "--classes" not in arguments \
        else ["--model", "seed:2"]
    server = programs.server("--check-config", *arguments, *extra)
    assert server.wait(20) == (2 if words else 0), server.tail()
    if words:
        server.line(words, 0.1)


AUTO = ["--input", "auto", *SHORT]


@pytest.mark.parametrize("durability", ["replay", "always"])
def test_auto_takes_the_images_of_the_first_worker(programs, durability):
    colours(programs.directory / "colour", classes=7)
    options = ["--model", "seed:2", "--durability", durability, *AUTO]
    server = programs.server(*options)
    server.line("server new_run.*model=.?input:auto")
    programs.ctl("--server", server.endpoint, "status")
    worker = programs.worker(server.endpoint, data=programs.directory / "colour")
    server.line("server images.* input=3x8x8 classes=7")
    assert server.result()["images"] == 60 and worker.wait(10) == 0
    weights = safetensors.load(programs.export(programs.directory / "ckpt"))
    assert weights["conv1.weight"].shape == (2, 3, 3, 3) and weights["fc1.bias"].shape == (7,)
    # needs no worker, because the checkpoint has the shape and the classes of the images
    again = programs.server(*options)
    assert again.wait(20) == 0 and not any("input:auto" in text for text in again.lines)


def test_auto_resumes_a_run_that_was_killed(programs):
    place = programs.directory / "colour"
    colours(place, n=400, side=32)
    options = ["--input", "auto", "--model", "fc:3", "--epochs", "200", "--batch-size", "10"]
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, data=place)
    server.line("server new_run.*input:3x32x32")
    until(lambda: server.status()["images"] > 500, 20, "images are counted")
    server.kill()
    server = programs.restart(server, *options)
    server.line("server resumed.*input:3x32x32")
    assert server.result()["images"] == 80000 and worker.wait(10) == 0


def test_auto_may_change_until_a_push_is_accepted(programs, data):
    place = programs.directory / "colour"
    colours(place)
    server = programs.server("--model", "fc:10", "--min-workers", "2", "--suspect-ms", "700",
                             "--dead-ms", "1000", *AUTO)
    first = programs.worker(server.endpoint)
    server.line("server images.* input=1x28x28")
    first.line("worker connected")
    # this worker, whose images have another size, is refused, because the first worker is still
    # connected
    other = programs.worker(server.endpoint, data=place)
    assert other.wait(20) == 6
    other.line("for images of 1x28x28, 10 classes, the images of this worker are 3x8x8", 0.1)
    first.kill()
    until(lambda: not any(w["state"] in ("live", "suspect", "joining", "away")
                          for w in server.status()["workers"]), 20, "the first worker is gone")
    fleet = [programs.worker(server.endpoint, data=place) for _ in range(2)]
    server.line("server images.* input=3x8x8")
    assert server.result()["images"] == 60
    assert [w.wait(10) for w in fleet] == [0, 0]
    weights = safetensors.load(programs.export(programs.directory / "ckpt"))
    assert weights["fc1.weight"].shape == (10, 192)


def test_auto_changes_a_few_times(programs):
    """Each worker leaves before it has pushed, and the next one has images of another size."""
    server = programs.server("--model", "fc:10", "--min-workers", "2", *AUTO)
    for side in range(2, 11):
        place = programs.directory / f"side{side}"
        colours(place, side=side)
        worker = programs.worker(server.endpoint, data=place)
        if side < 10:
            worker.line("worker connected")
            worker.signal(SIGTERM)
            worker.wait(20)
            until(lambda: server.status()["live_workers"] == 0, 20, "the worker is gone")
    assert worker.wait(20) == 6
    worker.line("has changed the images of the run 8 times before any push: begin a run", 0.1)


def test_auto_refuses_what_the_model_or_the_memory_does_not_fit(programs, data):
    place = programs.directory / "colour"
    colours(place)
    server = programs.server("--model", "conv:4:3 relu pool:2 pool:13 fc:10", *AUTO)
    worker = programs.worker(server.endpoint, data=place)
    assert worker.wait(20) == 6
    worker.line("--model does not fit the images 3x8x8 of this worker: layer 4", 0.1)
    worker = programs.worker(server.endpoint)
    server.line("server images.* input=1x28x28")
    worker.kill()
    server.kill()
    server = programs.server("--model", "fc:20000 relu fc:10", "--memory-mb", "200",
                             *AUTO, directory="other")
    worker = programs.worker(server.endpoint)
    assert worker.wait(20) == 6
    worker.line(r"the model has 1590\d+ parameters for the images 1x28x28 .* its limit is 200", 0.1)
    server.kill()
    # for this model, 400 MB are enough for some workers, but not for as many as --max-workers
    # permits by default
    server = programs.server("--model", "fc:2000 relu fc:10", "--memory-mb", "400", *AUTO,
                             directory="third")
    programs.worker(server.endpoint)
    server.line("server images.* input=1x28x28")

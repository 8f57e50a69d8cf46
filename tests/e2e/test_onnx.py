"""Test exports to ONNX: ONNX Runtime and cnn-ctl eval give equal predictions, for every kind of
layer."""
import csv
import json
import struct
import subprocess

import numpy as np
import pytest

from support import idx, safetensors
from support.build import ROOT, without

TOOLS = ROOT / "build/tools/bin/python"  # `deploy/setup.sh tools` makes it
PREDICT = """
import sys
import numpy, onnx, onnxruntime
model, images, out = sys.argv[1:]
onnx.checker.check_model(model, full_check=True)
session = onnxruntime.InferenceSession(model)
images = numpy.load(images)
rows = [session.run(None, {"images": images[i:i + 500]}) for i in range(0, len(images), 500)]
logits, probabilities = (numpy.concatenate(column) for column in zip(*rows))
assert (logits.argmax(1) == probabilities.argmax(1)).all()
assert numpy.abs(probabilities.sum(1) - 1).max() < 1e-5
numpy.save(out, probabilities)
print(onnx.load(model).metadata_props[0].value)
"""

GREY = "1x28x28"
MODELS = {
    "cnn99": (GREY, "cnn99"),
    "curves": (GREY, "conv:4:5 tanh avgpool:2 conv:8:3:stride=3 sigmoid fc:20 tanh dropout:0.5 fc:10"),
    "asymmetric padding": (GREY, "conv:6:4:stride=3:pad=auto relu pool:3:stride=2:pad=same "
                                 "avgpool:2:stride=1:pad=same fc:10"),
    "groups and lrn": (GREY, "conv:8:3:pad=1 lrn conv:12:5:groups=4 lrn:3:alpha=0.01:beta=0.5:k=1 "
                             "pool:2 fc:10"),
    "lrn of an even size": (GREY, "conv:8:5 lrn:4:alpha=0.1:k=1 pool:4 fc:10"),
    "batchnorm after conv and fc": (GREY, "conv:4:5 batchnorm relu pool:4 fc:16 batchnorm relu fc:10"),
    "layers of images after fc": (GREY, "fc:12 lrn conv:7:1 pool:1 skip fc:7 add avgpool:global fc:10"),
    "add of strided rows": (GREY, "conv:4:5 skip conv:6:4:stride=2:pad=1 add skip relu add "
                                  "avgpool:global fc:10"),
    "normalised": (GREY, "norm:0.13:0.31 shift:2 flip conv:4:5 relu pool:2 fc:10"),
    "channels": ("3x32x32", "norm:0.4914,0.4822,0.4465:0.247,0.2435,0.2616 shift:4 flip "
                            "conv:8:3:pad=1 relu pool:2 fc:37"),
    "resnet8": ("3x32x32", "resnet8"),
    "cifar": ("3x32x32", "cifar"),
}


@pytest.fixture(autouse=True)
def tools():
    if not TOOLS.exists():
        without("ONNX Runtime", "deploy/setup.sh tools")


def random_weights(path, programs, model):
    """Write a .safetensors file for the model, with random weights and random running
    statistics."""
    server = programs.server("--model", model, directory="init")
    shapes = {n: t.shape for n, t in safetensors.load(programs.export(server.endpoint)).items()}
    text = server.status()["model"]
    server.kill()
    rng = np.random.default_rng(len(text))
    header, at, data = {"__metadata__": {"format": "pt", "model": text}}, 0, b""
    for name, shape in shapes.items():
        t = rng.normal(0, 2 / np.sqrt(max(np.prod(shape[1:]), 4)), shape)
        if name.startswith("bn") and name.endswith(("weight", "running_var")):
            t = np.abs(t) + 0.5
        raw = t.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at, data = at + len(raw), data + raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def data_set(directory, shape, n):
    """Write `n` random test images with labels from 0 to 9."""
    rng = np.random.default_rng(9)
    c, h, w = map(int, shape.split("x"))
    coarse = rng.integers(0, 256, (n, c, h // 4, w // 4), dtype=np.uint8)
    images = coarse.repeat(4, 2).repeat(4, 3) if c > 1 else coarse[:, 0].repeat(4, 1).repeat(4, 2)
    labels = rng.integers(0, 10, n).astype(np.uint8)
    directory.mkdir()
    for name, array in zip(idx.NAMES, (images[:1], labels[:1], images, labels)):
        (directory / name).write_bytes(idx.encode(array))
    return images.reshape(n, c, h, w)


def by_onnx(directory, file, images):
    np.save(directory / "images.npy", images)
    done = subprocess.run([TOOLS, "-c", PREDICT, file, directory / "images.npy", directory / "p.npy"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.load(directory / "p.npy"), done.stdout.strip()


def by_eval(programs, weights, data):
    file = programs.directory / "predictions.csv"
    programs.ctl("eval", "--weights", weights, "--data", data, "--predictions", file, seconds=120)
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [int(row["image"]) for row in rows] == list(range(len(rows)))
    return np.array([int(row["class"]) for row in rows]), np.array(
        [float(row["probability"]) for row in rows])


def compare(programs, weights, data, images):
    file = programs.directory / "model.onnx"
    programs.ctl("export", "--weights", weights, file)
    found, text = by_onnx(programs.directory, file, images)
    classes, sure = by_eval(programs, weights, data)
    assert np.abs(found[np.arange(len(found)), classes] - sure).max() < 1e-4
    assert (found.argmax(1) == classes).mean() >= 0.9999, "rounding may decide between equals"
    assert found.std(0).max() > 1e-3, "the images must matter"
    return text


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_predicts_the_same_in_onnx_runtime(programs, name):
    shape, model = MODELS[name]
    if shape != GREY and model.startswith("norm"):
        model = f"input:{shape} {model}"
    images = data_set(programs.directory / "data", shape, 500)
    weights = random_weights(programs.directory / "w.safetensors", programs, model)
    text = compare(programs, weights, programs.directory / "data", images)
    assert "fc:10" in text or "fc:37" in text


def test_a_trained_network_predicts_the_same_on_all_test_images(programs, data):
    programs.train(2, "--model", "cnn99", "--epochs", 1)
    weights = programs.export(programs.directory / "ckpt")
    images = idx.read(data, idx.NAMES[2])
    assert len(images) == 10000
    compare(programs, weights, data, images.reshape(-1, 1, 28, 28))
    live = programs.directory / "live.onnx"
    programs.ctl("export", "--checkpoint", programs.directory / "ckpt", live)
    assert live.read_bytes() == (programs.directory / "model.onnx").read_bytes()


@pytest.mark.parametrize("name", ["a.onnx", "a.ONNX"])
def test_a_model_without_layers_is_no_onnx_file(programs, name):
    server = programs.server("--model", "vector:3")
    ctl = programs.ctl("--server", server.endpoint, "export", programs.directory / name, code=2)
    ctl.line("has no layers", 0.1)
    assert not (programs.directory / name).exists()

"""Run cnn-ladder and its stage 0 with the commands of docs/ladder.md, at small sizes."""
import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from support import idx
from support.build import PATIENCE, ROOT, command

STEP = ("rung,filters,batch,repetitions,ms_median,ms_min,images_per_s,copy_in_ms,kernel_ms,"
        "copy_out_ms,host_ms,error,ms_low,ms_high").split(",")
# hashes of the first twelve test images of MNIST, and of the images that pictures.py draws
MNIST_TWELVE = "da41fb5b9abe41a80d6eb74dfa29c8ed2eab718f449edb65205add499adfe8e0"
MNIST_FIRST = "16b3f265b4278efb7f48411b4e1f1530b926d3494f17628afd6071e6dba2a3b8"
PREDICTION = ("rung,seconds,steps,right,image,label,prediction,probability,"
              "of_label").split(",")
PICTURES = 5  # the number of images that pictures.py draws


def ladder(data, *arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}
    return subprocess.run(command("cnn-ladder", *arguments, "--data", data), cwd=ROOT, env=env,
                          capture_output=True, text=True, timeout=60 * PATIENCE)


def stage0(data, *arguments):
    return subprocess.run([sys.executable, ROOT / "kernels/ladder/stage0.py", *arguments],
                          env=dict(os.environ, CNN_DATA=str(data)), capture_output=True, text=True,
                          timeout=60 * PATIENCE)


def rows(done, names):
    assert done.returncode == 0, done.stderr
    table = csv.DictReader(io.StringIO(done.stdout))
    assert table.fieldnames == names
    return list(table)


def test_every_rung_is_timed_at_the_point_asked_for(data, tmp_path):
    phases = tmp_path / "phases.csv"
    done = ladder(data, "steps", "--filters", "3", "--batch", "7", "--seconds", "0",
                  "--phases", phases)
    first = rows(done, STEP)[0]
    assert (first["rung"], first["filters"], first["batch"]) == ("sequential", "3", "7")
    assert float(first["ms_median"]) > 0 and 0 < float(first["error"]) < 1e-5
    assert phases.read_text().splitlines()[1].startswith("sequential,3,7,host,all,")


def test_what_needs_a_gpu_is_named_or_run(data):
    done = ladder(data, "steps", "--filters", "1", "--batch", "2", "--seconds", "0")
    names = [r["rung"] for r in rows(done, STEP)]
    assert len(names) > 1 or 'skipped" rungs=gpu reason=' in done.stderr


def test_training_prints_the_predictions_of_the_net(data):
    done = ladder(data, "train", "--rung", "sequential", "--filters", "4", "--batch", "20",
                  "--seconds", "0.3")
    table = rows(done, PREDICTION)
    assert [r["seconds"] for r in table] == [t for t in ("0.01", "0.03", "0.1", "0.3")
                                             for _ in range(12)]
    for r in table:
        assert r["prediction"] in "0123456789" and 0 < float(r["probability"]) <= 1
        assert float(r["of_label"]) <= float(r["probability"])
        assert r["prediction"] != r["label"] or r["of_label"] == r["probability"]
    assert int(table[0]["steps"]) <= int(table[36]["steps"])


def test_a_row_is_the_median_of_several_runs(data):
    row, = rows(ladder(data, "steps", "--rung", "sequential", "--filters", "2", "--batch", "7",
                       "--seconds", "0", "--runs", "3"), STEP)
    assert 0 < float(row["ms_low"]) <= float(row["ms_median"]) <= float(row["ms_high"])


def test_names_of_rungs_may_be_a_list(data):
    arguments = ("--filters", "2", "--batch", "7", "--seconds", "0")
    table = rows(ladder(data, "steps", "--rung", "fused,sequential", *arguments), STEP)
    assert "sequential" in [r["rung"] for r in table]
    table = rows(ladder(data, "steps", "--rung", "gpu", *arguments), STEP)
    assert "sequential" not in [r["rung"] for r in table]


def test_the_cpu_is_timed_by_threads(data):
    table = rows(ladder(data, "cores", "--filters", "3", "--batch", "20", "--seconds", "0"),
                 "threads,filters,batch,repetitions,ms_median,ms_low,ms_high,images_per_s,error"
                 .split(","))
    cores = len(os.sched_getaffinity(0))
    threads = [int(r["threads"]) for r in table]
    assert threads[0] == 1 and threads == [2 ** i for i in range(len(threads))]
    assert len(threads) > 1 or cores == 1
    assert all(float(r["ms_median"]) > 0 and float(r["error"]) < 1e-5 for r in table)


def test_the_table_of_the_page_is_that_of_the_measurements():
    done = subprocess.run([sys.executable, ROOT / "kernels/ladder/table.py",
                           ROOT / "docs/ladder/steps.csv"], capture_output=True, text=True,
                          timeout=60 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout in (ROOT / "docs/ladder.md").read_text()


def medians(name, stage):
    """Returns {stage: median milliseconds of a step of 1000 images} of a file in docs/ladder."""
    with open(ROOT / "docs/ladder" / name, newline="") as file:
        return {stage.format(**r): float(r["ms_median"]) for r in csv.DictReader(file)
                if (r["filters"], r["batch"]) == ("256", "1000")}


def test_times_beside_earlier_projects_are_those_of_the_measurements():
    """The last two cells of a row have the name of a stage, and the time of an epoch (60 steps of
    1000 images; first table) or of a step (second table)."""
    step = medians("steps.csv", "{rung}") | medians("cores.csv", "{threads} threads")
    page = (ROOT / "docs/ladder.md").read_text().partition("\n## The projects before this one")[2]
    page = page.replace("kernels of workers, two threads", "`2 threads`")
    tables = re.findall(r"(?:^\|.*\n)+", page, re.M)
    for table, steps, rows_of_table in zip(tables, (60, 1), (9, 4), strict=True):
        found = re.findall(r"`([^`|]+)` \| ([\d.]+) (m?s) \|$", table, re.M)
        assert len(found) == rows_of_table, found
        for stage, time, unit in found:
            measured = steps * step[stage] / (1 if unit == "ms" else 1000)
            digits = len(time.replace(".", "").lstrip("0"))
            assert float(f"{measured:.{digits}g}") == float(time), (stage, measured)


@pytest.mark.parametrize("arguments, words", [
    (("climb",), "expected steps, cores, train, memory"),
    (("steps", "--filters", "3", "--batch", "60000", "--rate", "x"), "--rate"),
    (("steps", "--filters", "-1"), "--filters"),
    (("steps", "--rung", "of a chair"), "`cnn-ladder rungs` lists them"),
])
def test_bad_usage_ends_in_a_line_and_status_2(data, arguments, words):
    done = ladder(data, *arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_images_of_another_size_are_refused(tmp_path):
    for name, image in zip(idx.NAMES, (True, False, True, False)):
        (tmp_path / name).write_bytes(idx.encode(np.zeros((20, 27, 28) if image else 20, np.uint8)))
    done = ladder(tmp_path, "steps", "--filters", "1", "--batch", "2")
    assert done.returncode == 6 and "27x28, must be 28x28" in done.stderr


def test_stage_0_prints_the_same_columns(data):
    row, = rows(stage0(data, "steps", "--filters", "3", "--batch", "5", "--seconds", "0"), STEP)
    assert (row["rung"], row["filters"], row["batch"]) == ("numpy", "3", "5")
    table = rows(stage0(data, "train", "--filters", "3", "--batch", "10", "--seconds", "0.03"),
                 PREDICTION)
    assert len(table) == 24 and table[0]["rung"] == "numpy"


def pictures(place, table):
    return subprocess.run([sys.executable, ROOT / "kernels/ladder/pictures.py", table],
                          env=dict(os.environ, CNN_DATA=str(place)), capture_output=True, text=True,
                          timeout=60 * PATIENCE)


def predictions(path, labels):
    """Write a table with the predictions of one stage before its first step. Returns its path."""
    path.write_text("\n".join([",".join(PREDICTION)] + [
        f"sequential,0.03,0,0.1,{image},{label},7,0.5,0.5" for image, label in enumerate(labels)])
        + "\n")
    return path


def embedded(svg):
    """Returns the pixels of every picture in an SVG file, white on black as in the data set."""
    found = []
    for text in re.findall(r"data:image/png;base64,([^\"]+)", svg):
        raw = base64.b64decode(text)
        body = raw[raw.index(b"IDAT") + 4:raw.index(b"IEND") - 8]
        rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(28, 29)
        found.append(255 - rows[:, 1:])
    return found


def test_the_picture_shows_the_images_that_the_labels_belong_to(data, tmp_path):
    labels = idx.read(data, "t10k-labels-idx1-ubyte")[:12]
    done = pictures(data, predictions(tmp_path / "predictions.csv", labels))
    assert done.returncode == 0, done.stderr
    shown = embedded(done.stdout)
    assert len(shown) == PICTURES
    assert all((a == b).all() for a, b in zip(shown, idx.read(data, "t10k-images-idx3-ubyte")))


@pytest.mark.parametrize("wrong", [0, 11])
def test_images_with_other_labels_than_the_table_has_are_refused(data, tmp_path, wrong):
    labels = idx.read(data, "t10k-labels-idx1-ubyte")[:12].copy()
    labels[wrong] = (labels[wrong] + 1) % 10
    done = pictures(data, predictions(tmp_path / "predictions.csv", labels))
    assert done.returncode == 6 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and f"image {wrong}" in done.stderr
    assert "CNN_DATA" in done.stderr


def data_is_mnist(data):
    twelve = idx.read(data, "t10k-images-idx3-ubyte")[:12]
    return hashlib.sha256(twelve.tobytes()).hexdigest() == MNIST_TWELVE


def test_the_published_picture_is_of_mnist_and_other_images_are_refused_for_it(data):
    """The published picture must show images of MNIST, and its table must have MNIST's labels. The
    script refuses to draw the picture from other images."""
    published = ROOT / "docs/ladder"
    with (published / "predictions.csv").open() as f:
        labels = {int(r["image"]): r["label"] for r in csv.DictReader(f)}
    assert "".join(labels[i] for i in range(12)) == "721041495906"
    shown = embedded((published / "predictions.svg").read_text())
    assert len(shown) == PICTURES
    pixels = hashlib.sha256(b"".join(image.tobytes() for image in shown)).hexdigest()
    assert pixels == MNIST_FIRST
    if data_is_mnist(data):
        done = pictures(data, published / "predictions.csv")
        assert done.stdout == (published / "predictions.svg").read_text(), "make ladder draws another"
    fashion = Path("/usr/share/datasets/fashion-mnist")
    if not fashion.is_dir():
        pytest.skip("no Fashion-MNIST here")
    done = pictures(fashion, published / "predictions.csv")
    assert done.returncode == 6 and "labels" in done.stderr

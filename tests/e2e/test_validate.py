"""With --validate N a run holds back N training images and evaluates its epochs on them."""
import json
import time

import numpy as np
import pytest

from support import idx, numpy_net
from support.programs import until

HELD = 900
OPTIONS = ["--model", "seed:4", "--optimizer", "sgd", "--lr", "0.05", "--epochs", 2]


def held_back(n, held):
    """Returns the numbers of the images that a run holds back, computed as proto/WIRE.md
    specifies."""
    row, order = numpy_net.draws(0, 7, 0), list(range(n))
    for i in range(n - 1, 0, -1):
        j = next(row) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return np.array(sorted(order[:held]))


@pytest.fixture(scope="module")
def by_hand(small, tmp_path_factory):
    """Returns a data set with the images of `small`, split by hand: the images that a run would
    hold back are the test set."""
    images, labels = idx.read(small, idx.NAMES[0]), idx.read(small, idx.NAMES[1])
    held = held_back(len(images), HELD)
    rest = np.setdiff1d(np.arange(len(images)), held)
    directory = tmp_path_factory.mktemp("split")
    for name, array in zip(idx.NAMES, (images[rest], labels[rest], images[held], labels[held])):
        (directory / name).write_bytes(idx.encode(array))
    return directory


def epochs_of(directory):
    lines = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
    return [{k: o[k] for k in ("epoch", "images", "updates", "loss", "accuracy", "test_loss")}
            for o in lines if o["kind"] == "epoch"]


@pytest.mark.parametrize("limit", [[], ["--data-memory-mb", "1"]], ids=["memory", "disk"])
@pytest.mark.parametrize("words", ["", "shift:2 flip "], ids=["plain", "augmented"])
def test_a_split_by_hand_trains_the_same_weights(programs, small, by_hand, limit, words):
    options = ["--model", words + "seed:4", *OPTIONS[2:]]
    files, histories = [], []
    for name, data, more in (("a", small, ["--validate", HELD]), ("b", by_hand, [])):
        server = programs.server(*options, *more, directory=name)
        worker = programs.worker(server.endpoint, *limit, data=data)
        result = server.result(30)
        assert result["images"] == 2 * (6000 - HELD) and worker.wait(10) == 0
        files.append(programs.export(programs.directory / name, f"{name}.safetensors").read_bytes())
        histories.append(epochs_of(programs.directory / name))
    assert files[0] == files[1]
    assert histories[0] == histories[1] and len(histories[0]) == 2


def test_every_image_of_the_rest_once_although_all_are_killed(programs, small):
    options = ["--validate", HELD, "--model", "seed:4", "--epochs", 40, "--checkpoint-ms", 100]
    server = programs.server(*options)
    workers = [programs.worker(server.endpoint, data=small) for _ in range(2)]
    for _ in range(3):
        begun = server.status()["training_epoch"]
        until(lambda: server.status()["training_epoch"] >= min(begun + 2, 39), 30, "an epoch")
        workers.pop(0).kill()
        time.sleep(0.05)
        server.kill()
        server = programs.restart(server, *options)
        workers.append(programs.worker(server.endpoint, data=small))
    assert server.result(30)["status"] == "done"
    epochs = epochs_of(server.directory)
    assert [e["epoch"] for e in epochs] == list(range(1, 41))
    assert {e["images"] for e in epochs} == {6000 - HELD}
    assert all(abs(e["accuracy"] * HELD - round(e["accuracy"] * HELD)) < 1e-3 for e in epochs)


def test_the_run_stops_at_the_accuracy_of_the_held_images(programs, small, by_hand):
    server = programs.server("--validate", HELD, "--model", "seed:8", "--epochs", 50, "--stop-at",
                             "accuracy=0.8")
    worker = programs.worker(server.endpoint, data=small)
    assert server.status()["data"]["validate"] == HELD
    until(lambda: not server.running(), 60, "the end of the run")
    assert worker.wait(10) in (0, 12)
    last = epochs_of(server.directory)[-1]
    assert last["epoch"] < 50 and last["accuracy"] >= 0.8
    found = programs.ctl("eval", "--checkpoint", server.directory, "--data", by_hand)
    accuracy = float(found.out[0].partition("accuracy ")[2].split()[0])
    assert abs(accuracy - last["accuracy"]) < 0.1, "the next epoch may have begun"


@pytest.mark.parametrize("then,now", [(HELD, 500), (HELD, 0), (0, HELD)])
def test_another_number_does_not_continue_the_run(programs, small, then, now):
    programs.train(1, "--validate", then, *OPTIONS, data=small)
    server = programs.server("--validate", now, *OPTIONS[:-1], 3)
    assert server.wait(20) == 7
    server.line("--validate", 0.1)
    server = programs.server("--validate", then, *OPTIONS[:-1], 3)
    worker = programs.worker(server.endpoint, data=small)
    assert server.result(30)["images"] == 3 * (6000 - then) and worker.wait(10) == 0


def test_a_worker_with_too_few_images_is_refused(programs, small):
    server = programs.server("--validate", 6000, *OPTIONS)
    worker = programs.worker(server.endpoint, data=small)
    assert worker.wait(20) == 6
    worker.line("--validate 6000 leaves none of the 6000 training images of this worker", 0.1)
    server.kill()


def test_results_of_held_back_images_are_named_so(programs, small, browser):
    server = programs.server("--validate", HELD, "--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["training_epoch"] > 2, 30, "two epochs")
    browser.get(server.line(r"http listening.* url=(\S+?)/?$")[1])

    def legend(name):
        return browser.find_element("id", f"legend-{name}").text

    until(lambda: "validation" in legend("loss"), 10, "the name of the loss")
    assert "held-back images" in legend("accuracy")
    assert "test" not in legend("loss") + legend("accuracy")
    server.signal(15)
    assert server.wait(10) == 0
    programs.train(1, "--model", "seed:4", "--epochs", 1, data=small, directory="tested")
    tested = programs.directory / "tested"

    last = [programs.ctl("show", place).out[-1] for place in (server.directory, tested)]
    assert "validation loss" in last[0] and f"({HELD} held-back images)" in last[0]
    assert "test loss" in last[1] and "held-back" not in last[1]

    for place, tag, other in ((server.directory, b"epoch/validation_loss", b"epoch/test_loss"),
                              (tested, b"epoch/test_loss", b"epoch/validation_loss")):
        events = programs.directory / f"events-{place.name}"
        programs.ctl("--tensorboard", events, "history", place)
        content = next(events.iterdir()).read_bytes()
        assert tag in content and other not in content

    page = programs.directory / "report.html"
    page.write_text("\n".join(programs.ctl("report", server.directory, tested).out))
    browser.get(page.as_uri())
    kinds = browser.execute_script("return [...document.querySelectorAll('#runs tbody tr')].map("
                                   "row => row.cells[3].textContent)")
    assert kinds == [f"{HELD} held-back images", "test images"]
    assert browser.find_element("id", "mixed").is_displayed()

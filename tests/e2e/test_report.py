"""Test cnn-ctl report, which makes an HTML file that compares runs. Chromium shows the file."""
import json
import re
import statistics

import pytest

from support.build import PATIENCE
from support.many_samples import MANY_SAMPLES, PAINTED
from support.programs import until
from support.screen import insides, screen, spoken
from support.thread_time import thread_ms
from test_figures import contrast, min_distance

HOSTILE = '</script><script>document.title = "taken over"</script>'


def show_report(programs, browser, *directories):
    """Show the report of the runs in these directories. Returns the file."""
    page = programs.directory / "report.html"
    page.write_text("\n".join(programs.ctl("report", *directories).out))
    browser.get(page.as_uri())
    assert browser.get_log("browser") == [], "the console is clean"
    return page


def show_runs(programs, browser, **runs):
    """Show the report of runs, each of which has these lines as its history."""
    places = [programs.directory / name for name in runs]
    for place, lines in zip(places, runs.values()):
        place.mkdir()
        (place / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    show_report(programs, browser, *places)


def knows_the_time(directory):
    lines = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
    return any(worker[5] for o in lines if o["kind"] == "sample" for worker in o["workers"])


def test_report_compares_runs(programs, small, browser):
    options = ("--model", "seed:4", "--checkpoint-ms", 200)
    programs.train(2, *options, "--epochs", 2, "--lr", 0.002, data=small, directory="one")
    server = programs.server(*options, "--epochs", 1000, "--lr", 0.001, directory="two")
    programs.worker(server.endpoint, "--name", "ada", data=small)
    until(lambda: server.status()["training_epoch"] > 2, 30, "two epochs")
    server.kill()
    server = programs.restart(server, *options, "--epochs", 1000, "--lr", 0.0005)
    until(lambda: server.status()["training_epoch"] > 6, 30, "four more")
    until(lambda: knows_the_time(server.directory), 30, "a sample with the time of the worker")
    server.signal(15)
    assert server.wait(10) == 0
    one, two = programs.directory / "one", programs.directory / "two"

    page = show_report(programs, browser, one, two)
    assert page.stat().st_size < 400_000
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page.read_text())
    cells = "return [...document.querySelectorAll('#%s tbody tr')].map(" \
            "r => [...r.cells].map(c => c.textContent))"
    rows = browser.execute_script(cells % "runs")
    assert [row[:3] for row in rows[:1]] == [[str(one), "done", "2"]]
    # column 11 is the number of starts of the server
    assert rows[1][:2] == [str(two), "drained"] and rows[1][11] == "2"
    assert re.fullmatch(r"\d+\.\d\d %", rows[0][4])
    assert {row[3] for row in rows} == {"test images"}
    assert browser.execute_script("return document.getElementById('mixed').hidden")
    differ = {row[0]: row[1:] for row in browser.execute_script(cells % "options")}
    assert differ["--lr"] == ["0.002", "0.001 → 0.0005"] and differ["--epochs"] == ["2", "1000"]
    assert "--optimizer" not in differ
    assert browser.execute_script("return document.querySelectorAll('.chart canvas').length") >= 3
    assert browser.execute_script("return runs[1].gaps.length") == 1
    heads = browser.execute_script(
        "return [...document.querySelectorAll('#each section:last-child th')].map(c => c.textContent)")
    assert heads[-5:] == ["computes", "waits for weights", "sends", "waits for work", "copies"]
    last = browser.execute_script(
        "return [...document.querySelectorAll('#each section:last-child tbody tr:last-child td')].map("
        "c => c.textContent)")
    assert 97 <= sum(int(cell.removesuffix(" %")) for cell in last[-5:]) <= 103
    assert re.search(r"main thread: \d+ % messages and updates, \d+ % decoding",
                     browser.execute_script("return document.getElementById('each').textContent"))
    assert "ada" in browser.execute_script("return document.getElementById('each').textContent")


def test_charts_have_whole_epochs_and_keys(programs, browser):
    """The axis of epochs has only whole numbers. The arrow keys choose a point of a chart, and runs
    with the same epoch share it. An early end is not called a drain."""
    lines = [{"t": 1e12, "kind": "start", "model": "fc:10", "options": {}}] + [
        {"t": 1e12 + 1000 * i, "kind": "epoch", "epoch": i, "accuracy": i / 10, "test_loss": 1 / i} for i in (1, 2, 3)]
    end = {"t": 1e12 + 4000, "kind": "end", "status": "drained", "stop_reason": "epoch 3 has accuracy 0.3"}
    show_runs(programs, browser, early=[*lines, end], late=lines)
    labels = browser.execute_script("return ['accuracy', 'evaluation'].map(id => "
                                    "[...document.querySelectorAll(`#chart-${id} .dygraph-axis-label-x`)].map(e => e.textContent))")
    assert labels == [["1", "2", "3"], ["1", "2", "3"]]
    said = browser.execute_script("""
        const press = key => $("chart-accuracy").dispatchEvent(new KeyboardEvent("keydown", {key})), texts = [$("said").textContent];
        for (const key of ["End", "ArrowLeft", "Home"]) {
            press(key);
            texts.push($("said").textContent);
        }
        return texts;""")
    assert said[0] == "" and [len(re.findall(r"\d0\.000", words)) for words in said[1:]] == [2, 2, 2], said
    assert [words.split()[:2] for words in said[1:]] == [["epoch", "3"], ["epoch", "2"], ["epoch", "1"]], said
    assert all(chart.get_attribute("tabindex") == "0" for chart in browser.find_elements("css selector", ".chart:not(.empty)"))
    ends = browser.execute_script("return [...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[1].textContent)")
    assert ends == ["ended early: epoch 3 has accuracy 0.3", "not ended"]
    assert browser.get_log("browser") == [], "the console is clean"


# returns the labels of the x axis of a chart
X_LABELS = "return [...document.querySelectorAll(`#chart-${arguments[0]} .dygraph-axis-label-x`)].map(e => e.textContent)"


@pytest.mark.parametrize("epoch", [1, 4000])
def test_the_charts_of_one_epoch_have_labels(programs, browser, epoch):
    start = {"t": 10**12, "kind": "start", "model": "fc:10", "options": {}}
    end = {"t": 10**12 + 12300, "kind": "epoch", "epoch": epoch, "accuracy": 0.5, "test_loss": 1}
    show_runs(programs, browser, one=[start, end], same=[start, end])
    for chart in "accuracy", "evaluation":
        assert browser.execute_script(X_LABELS, chart) == [f"{epoch:,}"]
    assert "12" in browser.execute_script(X_LABELS, "time")
    places = browser.execute_script("return curves.map(g => g.toDomXCoord(g.getValue(0, 0)) / g.width_)")
    assert len(places) == 3 and all(0.4 < x < 0.7 for x in places), places


# returns the labels of the x axis of a chart as [text, left, right], with places relative to the chart
X_PLACES = """
const range = document.createRange(), box = $("chart-" + arguments[0]).getBoundingClientRect();
return [...document.querySelectorAll(`#chart-${arguments[0]} .dygraph-axis-label-x`)].map(e => {
    range.selectNodeContents(e);
    const {left, right} = range.getBoundingClientRect();
    return [e.textContent, left - box.left, right - box.left, box.width];
});
"""


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("seconds", [0.4, 60, 300, 90_000, 3_000_000])
def test_an_axis_of_seconds_has_several_labels(programs, browser, width, seconds):
    start = {"t": 10**12, "kind": "start", "model": "fc:10", "options": {}}
    ends = [{"t": 10**12 + int(100 * seconds) * i, "kind": "epoch", "epoch": i, "accuracy": 0.5, "test_loss": 1} for i in range(1, 11)]
    with screen(browser, width):
        show_runs(programs, browser, run=[start, *ends])
        labels = browser.execute_script(X_PLACES, "time")
    assert len(labels) >= (3 if width > 320 else 2), labels
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?", text) for text, *_ in labels), labels
    assert all(left >= 0 and right <= room + 1 for _, left, right, room in labels), labels
    assert all(b[1] >= a[2] + 4 for a, b in zip(labels, labels[1:])), labels


def test_a_run_without_a_value_is_not_spoken(programs, browser):
    """At a point of one run, the legend still has the names of the others."""
    start = {"t": 10**12, "kind": "start", "model": "fc:10", "options": {}}
    show_runs(programs, browser, **{name: [start, *({"t": 10**12 + 1000 * i, "kind": "epoch", "epoch": i, "accuracy": i / 10}
                                                   for i in epochs)] for name, epochs in {"ada": (1, 2), "bob": (2, 3)}.items()})
    said, legend = browser.execute_script("""
        const said = [], press = key => $("chart-accuracy").dispatchEvent(new KeyboardEvent("keydown", {key}));
        for (const key of ["Home", "ArrowRight", "ArrowRight"]) {
            press(key);
            said.push($("said").textContent);
        }
        return [said, $("legend-accuracy").textContent];""")
    assert [re.findall("ada|bob", words) for words in said] == [["ada"], ["ada", "bob"], ["bob"]], said
    assert "ada" in legend and "bob" in legend


@pytest.mark.parametrize("status", ["diverged", "aborted"])
def test_a_failure_is_not_shown_as_an_end_by_a_rule(programs, browser, status):
    """A run may fail after a rule has ended it, while its last epoch is evaluated."""
    end = {"t": 10**12 + 4000, "kind": "end", "status": status, "stop_reason": "epoch 3 has accuracy 0.3"}
    show_runs(programs, browser, failed=[{"t": 10**12, "kind": "start", "model": "fc:10", "options": {}}, end])
    assert browser.execute_script("return $('runs').tBodies[0].rows[0].cells[1].textContent") == status


@pytest.mark.parametrize("reason, lines", [(None, 1), ("epoch 3 has accuracy 0.3, and the goal is accuracy=0.25", 2)])
def test_only_a_reason_makes_a_row_of_runs_high(programs, browser, reason, lines):
    """A reason of an early end has several lines. Without one, the column is as narrow as its words. The
    name of the run, which has a column of its own, may have several lines in both cases."""
    end = {"t": 10**12 + 4000, "kind": "end", "status": "drained", "stop_reason": reason}
    show_runs(programs, browser, run=[{"t": 10**12, "kind": "start", "model": "fc:10", "options": {}}, end])
    width, shown = browser.execute_script("""
        const cell = $("runs").tBodies[0].rows[0].cells[1], range = document.createRange();
        range.selectNodeContents(cell);
        return [cell.offsetWidth, new Set([...range.getClientRects()].map(r => r.top)).size];""")
    assert shown >= lines and (width >= 140 if reason else width < 100 and shown == 1), (width, shown)


def test_a_screen_reader_names_what_the_keyboard_reaches(programs, browser):
    show_runs(programs, browser, good=GOOD, vector=[{**GOOD[0], "model": "vector:5"}])
    found = spoken(browser)
    assert len(found) > 8 and all(name for _, name, _ in found), found
    charts = [node for node in found if node[0] == "application"]
    assert len(charts) == 6 and all("arrow keys" in description for _, _, description in charts), found
    assert not [node for node in found if node[0] == "image"], "no picture takes keys"
    assert insides(browser, "application") == [], "no labels of an axis among the texts"
    show_runs(programs, browser, empty=[GOOD[0]])
    labels = browser.execute_script("return [...document.querySelectorAll('.chart')].map(e => e.ariaLabel)")
    assert len(labels) == 4 and all(label.endswith(": no values") for label in labels), labels


def test_a_full_history_of_many_workers(programs, browser):
    """A history of 4 MiB with 200 workers has more values than Math.max accepts as arguments."""
    place = programs.directory / "many"
    place.mkdir()
    lines = browser.execute_script(
        MANY_SAMPLES + "const lines = [{t: 1e12, kind: 'start', model: 'seed:4', options: {}}];"
        "for (let i = 1; i < 900; i++) lines.push(sample(1e12 + 1000 * i, 200));"
        "return lines.map(o => JSON.stringify(o)).join('\\n') + '\\n';")
    assert len(lines) > 4 << 20
    (place / "history.jsonl").write_text(lines)
    show_report(programs, browser, place)
    assert browser.execute_script(PAINTED, "#each canvas") > 0.9
    assert "staleness" not in browser.execute_script(
        "return document.querySelector('#each .quiet').textContent")
    took = [thread_ms(browser, "timelines()") for _ in range(5)]
    assert statistics.median(took) < 250 * PATIENCE, took  # measured: 60 ms


def test_a_long_pause_takes_little_of_the_timeline(programs, browser):
    """The run trains for two minutes, with a pause of two hours between them. In each of the two
    minutes, the server hangs for 20 s."""
    begun, again = 1_700_000_000_000, 1_700_007_260_000
    seconds = [*range(1, 30), *range(50, 61)]
    samples = [[{"t": at + 1000 * i, "kind": "sample", "images": 9, "images_per_s": 9, "loss": 1,
                 "workers": [[1, "live", 5, 1, 0, None]]} for i in seconds] for at in (begun, again)]
    start = {"t": begun, "kind": "start", "model": "fc:10", "options": {}}
    lines = [start, *samples[0], {**start, "t": again, "resumed": True}, *samples[1]]
    show_runs(programs, browser, paused=lines)
    assert browser.execute_script("return runs[0].gaps.length") == 3
    (cut,) = browser.execute_script("return runs[0].axis.cuts")
    assert cut == [begun + 60_000, again]
    shown, whole = browser.execute_script(
        "const a = runs[0].axis, [from, to] = a.cuts[0];"
        "return [a.place(to) - a.place(from), a.place(runs[0].last) - a.place(runs[0].starts[0].t)]")
    assert shown < 0.1 * whole
    note = browser.execute_script("return document.querySelector('#each .quiet').textContent")
    assert "a long time without a server is drawn shorter" in note
    assert "live; a stronger colour is faster suspect or stalled" in " ".join(note.split())
    assert "empty" in browser.find_element("id", "chart-accuracy").get_attribute("class")


@pytest.mark.parametrize("steps, gaps, time", [
    ([1] + 90 * [8], 0, "12 min"),  # 8 s between two samples, except after the first sample
    (30 * [1] + 90 * [8] + 30 * [1], 0, "13 min"),
    # a restart of the server after an hour without a server
    ([1] + 40 * [8] + [0] + 40 * [8], 1, "11 min"),
    ([1] + 40 * [8] + [100] + 40 * [8], 1, "11 min"),  # a server that hangs for 100 s
])
def test_a_history_with_fewer_samples_has_no_gaps(programs, browser, steps, gaps, time):
    """The server keeps only some of the samples of a long run. The report does not take the time
    between two of the remaining samples for a time without a server. `steps` has the seconds
    between two samples; a step of 0 is a restart after an hour."""
    at = 1_700_000_000_000
    start = {"t": at, "kind": "start", "model": "fc:10", "options": {}}
    lines = [start]
    for step in steps:
        at += 1000 * step or 3_600_000
        lines.append({"t": at, "kind": "sample", "images": 9, "images_per_s": 9, "loss": 1,
                      "workers": [[1, "live", 5, 1, 0, None]]} if step else
                     {**start, "t": at, "resumed": True})
    show_runs(programs, browser, long=lines)
    assert browser.execute_script("return runs[0].gaps.length") == gaps
    cells = browser.execute_script(
        "return [...document.querySelectorAll('#runs tbody td')].map(c => c.textContent)")
    assert time in cells, cells


def test_short_runs_have_their_workers_and_no_false_rates(programs, browser):
    """In a run without images, a worker is connected for less than a second, so it is in no sample.
    Another run trains for 0.6 s after 1.4 s without a worker."""
    begun = 1_700_000_000_000
    start = {"t": begun, "kind": "start", "options": {}}
    joined = {"kind": "worker", "worker": 1, "change": "joined", "name": "ada", "images": 0}
    sample = {"kind": "sample", "images": 0, "images_per_s": 0, "pushes": 0, "workers": []}
    runs = {
        "vector": [{**start, "model": "vector:2"}, {**sample, "t": begun + 1000},
                   {**joined, "t": begun + 1200}, {**joined, "t": begun + 1700, "change": "gone"},
                   {**sample, "t": begun + 2000, "pushes": 2000}],
        "short": [{**start, "model": "fc:10"}, {**sample, "t": begun + 1000},
                  {**joined, "t": begun + 1400},
                  {**sample, "t": begun + 2000, "images": 60000, "images_per_s": 100000,
                   "workers": [[1, "live", 100000, 1, 0, [80, 5, 5, 5, 5]]]}],
    }
    show_runs(programs, browser, **runs)
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#runs tbody tr')].map(r => [3, 9, 10].map(i => r.cells[i].textContent))")
    assert rows == [["–", "–", "1"], ["test images", "30,000", "1"]]
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#each tbody tr')].map(r => [...r.cells].slice(0, 6).map(c => c.textContent))")
    assert rows == [["1", "ada", "1 s", "100.00 %", "–", "–"], ["1", "ada", "1 s", "100.00 %", "100,000", "1.0"]]
    colours = browser.execute_script("""
        const {ids, left, top, row, x} = canvases[0][0].places, ratio = devicePixelRatio;
        const at = t => [...canvases[0][0].getContext("2d").getImageData(x(t) * ratio, (top + row / 2) * ratio, 1, 1).data];
        return [ids, ...[500, 1450, 1900].map(ms => at(1.7e12 + ms))]""")
    assert colours[0] == [1]
    before, there, gone = colours[1:]
    assert before[3] == 0 and there[2] > there[0] + 50, "blue"
    assert gone[3] > 0 and abs(gone[0] - gone[2]) < 50, "grey"


def show_eight_runs(programs, browser, name):
    show_runs(programs, browser, **{f"{name}{i}": [
        {"t": 1000, "kind": "start", "model": "fc:10", "options": {"lr": i}},
        *({"t": 1000 * t, "kind": "sample", "images": 9, "images_per_s": 9, "loss": i, "workers": []}
          for t in range(2, 9))] for i in range(1, 9)})


def test_eight_runs_have_eight_colours(programs, browser):
    show_eight_runs(programs, browser, "run")
    legend = browser.execute_script(
        "return [...document.querySelectorAll('#legend-loss > span')].map("
        "e => [e.firstChild.style.color, e.style.whiteSpace])")
    assert len({colour for colour, _ in legend}) == 8 and {space for _, space in legend} == {"nowrap"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_curve_can_be_seen(programs, browser, theme):
    """Level AA of WCAG 2 requires a contrast of at least 3 between a curve and its background. The
    colours differ also for people with deuteranopia or protanopia."""
    show_eight_runs(programs, browser, "run")
    card, *colours = browser.execute_script("theme(arguments[0]); return ['card', ...palette].map(color)", theme)
    card = "#ffffff" if card == "#fff" else card
    assert len(colours) == 8 and [c for c in colours if contrast(c, card) < 3] == []
    assert min_distance(colours) > 0.12


def test_a_run_that_is_given_twice_has_two_curves(programs, browser):
    show_eight_runs(programs, browser, "run")
    show_report(programs, browser, programs.directory / "run1", programs.directory / "run1")
    legend = browser.execute_script(
        "return [...document.querySelectorAll('#legend-loss > span')].map(e => [e.firstChild.style.color, e.textContent])")
    assert len({colour for colour, _ in legend}) == 2 and legend[1][1].endswith("run1 (2)"), legend


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", ["downpour-lr-0.00", "one-word-" + 60 * "x"])
def test_the_legend_of_many_runs_fits(programs, browser, width, name):
    with screen(browser, width):
        show_eight_runs(programs, browser, name)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        shown = browser.find_element("id", "legend-loss").text
        assert all(f"{name}{i}" in "".join(shown.split()) for i in range(1, 9))


@pytest.mark.parametrize("width", [1280, 375])
def test_long_names_and_values_are_not_cut(programs, browser, width):
    """Names of directories, and values of options, may differ only at their end."""
    name = "downpour-with-a-warm-start-and-a-cosine-schedule-of-the-learning-rate-" + 30 * "x"
    model = "conv:6:5:pad=same relu pool:2 conv:16:5 relu pool:2 fc:120 relu fc:84 relu fc:100 relu fc:1"
    with screen(browser, width):
        show_runs(programs, browser, **{f"{name}{i}": [{"t": 1000, "kind": "start", "model": f"{model}{i}", "options": {}}]
                                        for i in (1, 2)})
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        cells = browser.execute_script("""
            return [...document.querySelectorAll("#runs tr > :first-child, #options tr > *")].map(e => [e.textContent,
                [e, ...e.children].some(e => e.scrollWidth > e.clientWidth), e.clientWidth]);""")
    assert len(cells) == 3 + 6 and sum(text.endswith(f"{name}1") for text, *_ in cells) == 2, cells
    assert not [text for text, is_cut, wide in cells if is_cut or wide > 0.7 * width], cells


def test_text_of_a_history_is_never_markup(programs, browser):
    lines = [{"t": 1000, "kind": "start", "model": HOSTILE, "options": {"mode": HOSTILE}},
             {"t": 1500, "kind": "worker", "worker": 1, "change": "joined", "name": HOSTILE},
             {"t": 2000, "kind": "sample", "images": 9, "loss": 1, "workers": [[1, "live", 5, None, 0]],
              "rejected": 7, "rejected_for": {"stale": 5, HOSTILE: 2}}]
    show_runs(programs, browser, **{"<mark>bold": lines})
    assert browser.title == "cnn-ps report"
    assert not browser.find_elements("tag name", "mark")
    assert HOSTILE in browser.execute_script("return document.getElementById('each').textContent")
    assert f"7: 5 stale, 2 {HOSTILE}" in browser.execute_script(
        "return document.getElementById('runs').textContent")


def test_a_directory_without_history_is_refused(programs, tmp_path):
    assert "history.jsonl" in programs.ctl("report", tmp_path, code=6).lines[-1]


GOOD = [{"t": 10**12, "kind": "start", "model": "fc:10", "options": {}},
        *({"t": 10**12 + 1000 * i, "kind": "sample", "images": 9, "images_per_s": 9, "loss": i,
           "workers": [[1, "live", 5, 1, 0, None]]} for i in (1, 2, 3)),
        {"t": 10**12 + 3000, "kind": "epoch", "epoch": 1, "accuracy": 0.5, "test_loss": 1}]
JOINED = {"t": 10**12, "kind": "worker", "worker": 7, "name": "ada", "change": "joined"}


def test_a_worker_that_was_live_for_no_time_has_no_share(programs, browser):
    show_runs(programs, browser, run=[*GOOD, {**JOINED, "t": GOOD[-1]["t"]}])
    cells = browser.execute_script("return [...document.querySelector('#each tbody').lastChild.cells].map(c => c.textContent)")
    assert cells[:5] == ["7", "ada", "0 s", "–", "–"]


@pytest.mark.parametrize("lines, workers", [
    ([{**GOOD[1], "workers": {"a": 1}}], "0"), ([{**GOOD[1], "workers": [1]}], "0"),
    ([{"t": 10**12, "kind": "sample"}], "0"), ([{"kind": "sample"}], "0"),
    ([*GOOD[:2], {**GOOD[2], "workers": None}, {**GOOD[2], "t": "late"}, {"kind": "epoch"}], "1"),
    ([JOINED, {**JOINED, "t": 10**12 + 2000, "change": "gone"}], "1"), (GOOD[-1:], "0"),
], ids=["object", "number", "no workers", "no time", "some lines", "only a worker", "only an epoch"])
def test_a_report_with_a_damaged_history_has_the_other_runs(programs, browser, lines, workers):
    """The page leaves out lines without a time and samples without a list of workers. A history may
    have lost its start and all of its samples."""
    show_runs(programs, browser, damaged=lines, good=GOOD)
    rows = browser.execute_script("return [...document.querySelectorAll('#runs tbody tr')].map("
                                  "r => [...r.cells].map(c => c.textContent))")
    names = [str(programs.directory / name) for name in ("damaged", "good")]
    # column 10 is the number of workers
    assert [(row[0], row[10]) for row in rows] == [(names[0], workers), (names[1], "1")]
    assert all(re.fullmatch(r"\d+ s", row[8]) for row in rows), rows
    assert browser.execute_script("return document.getElementById('model').textContent") == "fc:10"
    assert browser.execute_script("return curves.length") == 4
    assert browser.execute_script(PAINTED, "#each section:last-child canvas") > 0.9

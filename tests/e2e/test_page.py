"""Test the server's page in Chromium: its content, restarts of the server, and access tokens."""
import base64
import contextlib
import http.client
import json
import math
import re
import signal
import socket
import statistics
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq

from support.build import PATIENCE
from support.many_samples import MANY_SAMPLES, PAINTED
from support.programs import until
from support.screen import insides, screen, spoken
from support.thread_time import thread_ms
from test_figures import contrast, min_distance

TOKEN = "correct-horse~battery_staple.9"  # browsers send ~ as %7E


def url_of(server):
    return server.line(r"http listening.* url=(\S+?)/?$")[1]


def cookie_of(url):
    return "cnnps_token_" + url.rsplit(":", 1)[1]


def write_token(path, token):
    """Write a file for --http-token, which only its owner may read."""
    path.touch(0o600)
    path.write_text(token)


def fetch(url, **headers):
    """Send a GET request. Returns (status, headers, body)."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()


def log_in(url, token):
    """Send the form of the page as a browser does. Returns the HTTP status."""
    to = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(to.hostname, to.port, timeout=5)
    with contextlib.closing(connection):
        connection.request("POST", "/login", urllib.parse.urlencode({"token": token}),
                           {"Content-Type": "application/x-www-form-urlencoded"})
        return connection.getresponse().status


def enter(browser, token):
    """Fill in and send the form of the page."""
    field = browser.find_element("name", "token")
    field.send_keys(token)
    field.submit()


def text(browser, element):
    return browser.execute_script(f"return document.getElementById('{element}').textContent")


def open_page(programs, browser, *options, model="seed:4", **how):
    """Start a server, open its page, and wait until the page shows the state of the run. Returns the
    server. `options` and `how` are those of programs.server()."""
    server = programs.server("--model", model, *options, **how)
    browser.get(url_of(server))
    until(lambda: text(browser, "state") == "waiting", 10, "the page")
    return server


BUSY_TWICE = """
    window.asked = window.streams = 0;
    const send = fetch;
    window.fetch = (url, how) => url !== "history/short" || ++asked > 2 ? send(url, how) :
        Promise.resolve(new Response("busy", {status: 503, headers: {"Retry-After": "1"}}));
    window.EventSource = class extends EventSource {
        constructor(url) {
            super(url);
            streams++;
        }
    };"""


def test_a_server_that_is_busy_gets_another_request_for_the_history(programs, browser):
    """The server refuses the history with status 503. The page keeps its stream, which is not
    refused, and requests the history again."""
    server = programs.server("--model", "seed:4")
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument",
                                     {"source": BUSY_TWICE})["identifier"]
    try:
        browser.get(url_of(server))
        until(lambda: browser.execute_script("return asked") == 3, 20, "the third request")
        until(lambda: browser.execute_script("return run.last > 0"), 20, "the history")
        assert browser.execute_script("return streams") == 1
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})


def test_one_small_file_without_other_hosts(programs):
    server = programs.server("--model", "seed:4")
    status, headers, body = fetch(url_of(server) + "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert len(body) < 300_000
    assert not re.search(rb"(src|href)\s*=\s*[\"']?(https?:)?//", body)
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.alone
def test_the_first_paint_is_quick(programs, small, browser):
    """A browser opens the page of a run in training, in an empty tab."""
    server = programs.server("--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["updates"], 30, "training")
    times = []
    for _ in range(11):
        # leave the page, because closing it would otherwise take some of the measured time
        browser.get("about:blank")
        browser.get(url_of(server))
        times.append(until(lambda: browser.execute_script(
            "const e = performance.getEntriesByName('first-contentful-paint')[0];"
            "return e && e.startTime"), 10, "a paint"))
    assert statistics.median(times[2:]) < 200 * PATIENCE, times  # the first two loads are slow


def test_the_scripts_run_after_the_first_paint(programs, browser):
    """Scripts that ran before the first paint would delay it. If the page is visible, but the
    browser has not painted it within a second, the scripts run anyway."""
    server = programs.server("--model", "seed:4")
    browser.get_log("browser")
    for _ in range(3):
        browser.get(url_of(server))
        until(lambda: text(browser, "state") == "waiting", 10, "the scripts run")
        paint, start = browser.execute_script(
            "return ['first-contentful-paint', 'start'].map(n => performance.getEntriesByName(n)[0]?.startTime)")
        assert start > 900 or paint is not None and paint <= start
        assert browser.execute_script("return document.querySelectorAll('head script').length") == 3
    assert browser.get_log("browser") == [], "the console is clean"


def redrawn(browser):
    """Wait until the page has drawn new points of all curves."""
    rows = "return curves.map(g => g.numRows())"
    before = browser.execute_script(rows)
    until(lambda: all(new > old for new, old in zip(browser.execute_script(rows), before)), 20,
          "new points")


def test_page_of_a_run_that_survives_its_server(programs, small, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    options = ("--model", "seed:8", "--epochs", 500, "--checkpoint-ms", 200)
    server = programs.server(*options)
    port = url_of(server).rsplit(":", 1)[1]
    for name in ("one", "two"):
        programs.worker(server.endpoint, "--name", name, data=small)
    browser.get_log("browser")
    browser.get(url_of(server))
    until(lambda: "%" in text(browser, "accuracy"), 30, "the page shows an accuracy")
    until(lambda: browser.execute_script("return run.samples.length") >= 2, 30, "samples")
    assert text(browser, "state") == "training"
    assert re.match(r"\d+ / 500", text(browser, "epoch"))
    assert "two" in text(browser, "workers") and "gradients decided" in text(browser, "once")
    assert browser.execute_script("return document.querySelectorAll('.chart canvas').length") >= 3
    assert browser.execute_script("return document.getElementById('timeline').height") > 40
    for chart in ("accuracy", "loss", "rate"):
        assert re.search(r"\d", browser.execute_script(
            f"return document.getElementById('chart-{chart}').getAttribute('aria-label')"))
    until(lambda: len(browser.find_elements("css selector", "#wall li")) == 24, 20, "the wall")
    assert re.fullmatch(r"label \d; answer \d, \d+\.\d\d % sure",
                        browser.find_element("css selector", "#wall li").get_attribute("title"))
    assert "of 24 test images right" in text(browser, "wall-note")
    chart = browser.find_element("id", "chart-loss")
    assert text(browser, "said") == "", "screen readers know the element before it has a text"
    assert "arrow keys" in text(browser, chart.get_attribute("aria-describedby"))
    for key in "END", "ARROW_LEFT", "HOME":
        chart.send_keys(getattr(Keys, key))
        # the point of an epoch has no training loss
        assert re.search(r"^\d\d:\d\d:\d\d: .*(training|test) \d", text(browser, "said")), key
    first = text(browser, "legend-loss")
    assert re.search(r"\d", first)
    redrawn(browser)
    assert text(browser, "legend-loss") == first, "the key's choice remains"
    ActionChains(browser).move_to_element_with_offset(chart, 150, 0).perform()
    pointed = text(browser, "legend-loss")
    assert re.search(r"\d", pointed) and pointed != first
    redrawn(browser)
    assert text(browser, "legend-loss") == pointed, "the pointer's choice remains"
    ActionChains(browser).move_to_element(browser.find_element("id", "theme")).perform()
    assert text(browser, "legend-loss") == first, "without the pointer, the key's choice counts"
    chart.send_keys(Keys.ARROW_RIGHT)
    assert text(browser, "legend-loss") != first
    browser.execute_script("document.activeElement.blur()")
    redrawn(browser)
    assert not re.search(r"\d", text(browser, "legend-loss")), "nothing is chosen"
    assert browser.execute_script("return document.getElementById('stalest').textContent") != ""
    assert browser.get_log("browser") == [], "the console is clean"

    server.kill()
    until(lambda: text(browser, "state") == "server away", 20, "the page says so")
    assert "connects again by itself" in text(browser, "notice")
    assert text(browser, "rate") == text(browser, "live") == "–", "nothing old looks new"
    cells = browser.execute_script(
        "return [...$('workers').tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))")
    assert sorted(row[1] for row in cells) == ["one", "two"], cells
    assert all(row[2] == row[3] == row[5] == "–" for row in cells), cells
    assert "when a worker evaluated them last" in text(browser, "wall-note")
    away = "return run.absences.length && run.absences.at(-1)[1] - run.absences.at(-1)[0]"
    first = until(lambda: browser.execute_script(away), 10, "the gap is shaded at once")
    until(lambda: browser.execute_script(away) > first, 10, "the gap grows")
    server = programs.restart(server, *options, "--http", f"127.0.0.1:{port}")
    until(lambda: text(browser, "state") in ("training", "evaluating", "waiting"), 30, "it is back")
    until(lambda: "live" in text(browser, "workers"), 30, "the table is new again")
    assert "every other second" in text(browser, "wall-note")
    until(lambda: browser.execute_script("return run.gaps.length") == 1, 10, "the gap is marked")
    epochs = browser.execute_script("return run.epochs.map(e => e.epoch)")
    assert epochs == list(range(1, len(epochs) + 1))

    server.signal(signal.SIGTERM)
    until(lambda: "The run has ended" in text(browser, "notice"), 30, "no server is missed")
    assert text(browser, "state") != "server away"


def test_the_notice_changes_only_when_its_words_do(programs, browser):
    """A screen reader reads the notice again after each change, and a change ends the user's
    selection of its text. So the notice must not change while its words stay the same."""
    server = programs.server("--model", "seed:4")
    browser.get(url_of(server))
    until(lambda: "waiting for workers: 0 of 1: cnn-worker" in text(browser, "notice-text"), 10, "why")
    browser.execute_script("""
        window.changes = 0;
        new MutationObserver(list => window.changes += list.length).observe($("notice-text"),
            {characterData: true, childList: true, subtree: true});
        getSelection().selectAllChildren($("notice-text"));""")
    before = text(browser, "notice-time")
    until(lambda: text(browser, "notice-time") not in ("", before), 10, "the time goes on")
    assert browser.execute_script("return [window.changes, String(getSelection())]") == \
        [0, text(browser, "notice-text")]


@pytest.mark.parametrize("selected", ["$('model')", "$('best')", "$('once').lastChild", "$('wall-note')"])
def test_a_text_that_does_not_change_stays_selected(programs, browser, selected):
    """A new status draws the page again."""
    open_page(programs, browser)
    browser.execute_script(f"""
        onWall({{side: [1, 1], images: [{{pixels: 'AA==', class: 3, label: 3, sure: 0.5}}]}});
        window.drawings = 0;
        const draw = drawValues;
        drawValues = () => {{ draw(); drawings++; }};
        getSelection().selectAllChildren({selected});""")
    until(lambda: browser.execute_script("return drawings") > 1, 10, "the next drawings")
    kept, whole = browser.execute_script(f"return [String(getSelection()), {selected}.innerText]")
    assert kept and kept.split() == whole.split()


@pytest.mark.parametrize("width", [320, 390, 1300])
def test_the_command_of_a_notice_can_be_copied(programs, browser, width):
    """No line ends inside of an option, and a blank is before the time, which is no part of the
    command."""
    server = programs.server("--model", "seed:4")
    with screen(browser, width):
        browser.get(url_of(server))
        until(lambda: re.search(r" \(for \d+ s\)$", text(browser, "notice")), 10, "the time")
        words, lines = browser.execute_script("""
            stream.close();
            stream = null;
            notice("waiting for workers: 0 of 1: cnn-worker --server tcp://127.0.0.1:6601 --batch-timeout-ms 5");
            return [$("notice-text").textContent, [...document.querySelectorAll("#notice .word")].map(e => [e.textContent, e.getClientRects().length])];""")
        assert words.endswith(": cnn-worker --server tcp://127.0.0.1:6601 --batch-timeout-ms 5")
        assert lines == [["cnn-worker", 1], ["--server", 1], ["--batch-timeout-ms", 1]]


NO_HISTORY = """
    const send = fetch;
    window.fetch = (url, how) => url === "history/short" ? new Promise(() => {}) : send(url, how);"""


def test_a_page_without_a_history_claims_nothing_wrong(programs, browser):
    """Until the history has arrived, the page knows from the status that the run holds back images,
    and does not know the best epoch."""
    server = programs.server("--model", "seed:4", "--validate", 1000)
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_HISTORY})["identifier"]
    try:
        browser.get(url_of(server))
        until(lambda: text(browser, "state") == "waiting", 10, "the page")
        until(lambda: "held-back images" in text(browser, "legend-accuracy"), 10, "the legend")
        assert "validation" in text(browser, "legend-loss")
        best = browser.execute_script("""
            stream.close();
            run.take({t: Date.now(), kind: "epoch", epoch: 7, accuracy: 0.5, test_loss: 1});
            status.accuracy = 0.5;
            drawStatus();
            return $("best").textContent;""")
        assert best == ""
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})


def test_a_rule_that_ends_a_run_is_not_called_a_drain(programs, browser):
    open_page(programs, browser, directory=None)
    reason = "the goal of --stop-at is reached: epoch 2 has accuracy 0.5000"
    browser.execute_script("stream.close(); status.stop_reason = arguments[0]", reason)
    last, gone = browser.execute_script(END, "drained", None)
    assert last == ["pill good", f"The run ends early, because {reason}.", "calm"]
    assert gone == ["pill good", f"The run ends early, because {reason}. The run has ended and its server has exited.", "calm"]
    assert text(browser, "state") == "ended early"


# shows a run that ends, then the loss of the connection; returns the class of the state and the notice
# after each of them
END = """
const shown = () => [$("state").className, $("notice").textContent, $("notice").className];
status.ending = arguments[0];
status.checkpoint = arguments[1];
drawStatus();
const last = shown();
retry();
return [last, shown()];
"""


def test_a_run_that_failed_does_not_look_like_success(programs, browser):
    open_page(programs, browser, directory=None)
    assert browser.execute_script("return status.checkpoint") is None
    for ending, why in ("diverged", "gradients not finite, or of another size"), ("aborted", "Its log says why"):
        for state, notice, css in browser.execute_script(END, ending, None):
            assert state == "pill bad" and why in notice and css == "", ending
    for ending in "done", "drained":
        (before, _, _), (after, notice, css) = browser.execute_script(END, ending, None)
        assert before == after == "pill good" and css == "calm", ending
        # a run without --checkpoint-dir leaves no history for cnn-ctl report
        assert notice == "The run has ended and its server has exited."
        _, (_, notice, _) = browser.execute_script(END, ending, {"generation": 3})
        assert notice.endswith("exited. cnn-ctl report shows it again.")


def test_curves_without_a_value_are_empty(programs, browser):
    """Before the first evaluation, the charts of accuracy and loss have no point and no axis."""
    open_page(programs, browser)
    until(lambda: browser.execute_script("return run.samples.length"), 10, "a sample")
    assert browser.execute_script("return [0, 1].map(i => curves[i].getValue(0, 1))") == [None, None]
    for chart, is_empty in ("accuracy", True), ("loss", True), ("rate", False):
        box = browser.find_element("id", f"chart-{chart}")
        assert ("empty" in box.get_attribute("class")) == is_empty
        # in one script, because a drawing replaces the labels
        assert browser.execute_script(
            "return [...arguments[0].querySelectorAll('.dygraph-axis-label')].some("
            "label => label.checkVisibility({visibilityProperty: true, opacityProperty: true}))",
            box) != is_empty
    assert browser.get_log("browser") == [], "the console is clean"


@pytest.mark.alone
def test_a_long_run_of_many_workers_is_drawn_quickly(programs, browser):
    """A run of more than an hour with 200 workers has more values than Math.max accepts as
    arguments. The page still paints the timeline, and needs a small part of a second for it."""
    open_page(programs, browser)
    browser.execute_script("document.getElementById('timeline-box').scrollIntoView()")
    browser.execute_script(MANY_SAMPLES + "const at = Date.now() - 4e6; run = new Run('', ROOM);"
                           "for (let i = 0; i < 4000; i++) run.take(sample(at + 1000 * i, 200));")
    kept = browser.execute_script("return run.samples.map(s => s.t)")
    steps = [b - a for a, b in zip(kept, kept[1:])][:-1]
    assert 100 < len(kept) < 400 and max(steps) <= 2 * min(steps), "thinned evenly"
    browser.execute_script("run.last = run.samples[run.samples.length - 1].t; draw()")
    assert browser.execute_script(PAINTED, "timeline") > 0.9
    took = [thread_ms(browser, "draw()") for _ in range(5)]
    assert statistics.median(took) < 150 * PATIENCE, took  # measured: a median of 30 ms
    assert not browser.execute_script("return document.getElementById('key-line').checkVisibility()")
    assert browser.get_log("browser") == [], "the console is clean"


# draws a timeline of 100 samples, where one sample has 50 times the rate and the staleness of the
# others; returns the opacity of a usual cell, and the staleness at the upper edge of a row
OUTLIER = """
run = new Run("", ROOM);
for (let i = 0; i < 100; i++)
    run.take({...sample(1.7e12 + 1000 * i, 1), workers: [[1, "live", i === 50 ? 50000 : 1000, i === 50 ? 300 : 6, 30, null]]});
const c = $("timeline"), stalest = timeline(c, run);
const at = [run.samples[10].t - 500, run.samples[90].t - 500].map(c.places.x);
return [...at.map(x => c.getContext("2d").getImageData(x * devicePixelRatio, (c.places.top + c.places.row - 4) * devicePixelRatio, 1, 1).data[3] / 255), stalest];
"""


def test_an_outlier_does_not_scale_the_timeline(programs, browser):
    open_page(programs, browser)
    early, late, stalest = browser.execute_script(MANY_SAMPLES + OUTLIER)
    assert min(early, late) > 0.9 and stalest == 6


# draws a timeline of a worker with a constant rate and staleness; returns the colours [r, g, b] from the
# top to the bottom of its row
STALENESS = """
theme(arguments[0]);
run = new Run("", ROOM);
for (let i = 0; i < 100; i++)
    run.take({...sample(1.7e12 + 1000 * i, 1), workers: [[1, "live", 1000, 2, 30, null]]});
const c = $("timeline");
timeline(c, run);
const ratio = devicePixelRatio, x = c.places.x(1.7e12 + 50500) * ratio, height = (c.places.row - 2) * ratio;
const {data} = c.getContext("2d").getImageData(x, c.places.top * ratio, 1, height);
return Array.from({length: height}, (_, i) => [...data.slice(4 * i, 4 * i + 3)]);
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_staleness_can_be_seen_on_a_fast_worker(programs, browser, theme):
    """Level AA of WCAG 2 requires a contrast of at least 3 between a line and what is beside it."""
    open_page(programs, browser)
    column = ["#" + "".join(f"{part:02x}" for part in rgb) for rgb in browser.execute_script(MANY_SAMPLES + STALENESS, theme)]
    line = next(i for i, colour in enumerate(column) if contrast(colour, column[i - 2]) >= 3)
    assert 4 < line < 16, column


# draws a timeline of 100 samples with six workers; returns for each worker the numbers of the samples
# in whose cells the line of staleness can be seen
PAUSES = """
stream.close();
stream = null;
const between = (i, from, to) => i >= from && i < to, states = [
    i => "live",
    i => between(i, 30, 32) ? "suspect" : between(i, 32, 50) ? null : "live", /* killed, started again after 20 s */
    i => between(i, 30, 33) ? "suspect" : between(i, 33, 37) ? null : "live", /* stopped for 7 s */
    i => between(i, 30, 31) ? "stalled" : "live",
    i => between(i, 30, 33) ? "away" : "live",
    i => between(i, 30, 31) ? "late" : "live"];
const c = $("timeline"), drawn = stale => {
    run = new Run("", ROOM);
    for (let i = 0; i < 100; i++)
        run.take({...sample(1.7e12 + 1000 * i, 1), workers: states.map((state, k) => {
            const s = state(i);
            return s && [k + 1, s === "late" ? "live" : s, 1000, i % 4 ? stale(i) : null, s === "late" ? 1600 : 30, null];
        }).filter(w => w)});
    timeline(c, run);
    return c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
};
const lines = drawn(i => 2 + i % 3), bars = drawn(() => null), ratio = devicePixelRatio, {x, top, row} = c.places;
const differ = (k, a, b) => {
    for (let v = Math.ceil((top + k * row) * ratio); v < (top + (k + 1) * row - 2) * ratio; v++)
        for (let u = Math.ceil(a * ratio); u < b * ratio; u++)
            if ([0, 1, 2, 3].some(part => lines[4 * (v * c.width + u) + part] !== bars[4 * (v * c.width + u) + part]))
                return true;
    return false;
};
/* the ends of a line that is not level reach 2 pixels into the next cell */
return states.map((_, k) => run.samples.map((_, i) => i).filter(i => i &&
    differ(k, x(1.7e12 + 1000 * (i - 1)) + 3, x(1.7e12 + 1000 * i) - 3)));
"""


def test_the_line_of_staleness_does_not_hide_a_pause(programs, browser):
    """The line breaks while a worker is suspect, stalled, away or gone, and begins again at the first
    live sample with a staleness. A live worker that sends no push in a second does not break it."""
    open_page(programs, browser)
    always, killed, stopped, stalled, away, late = browser.execute_script(MANY_SAMPLES + PAUSES)
    assert always == list(range(2, 100))
    for line, begin, end in (killed, 30, 50), (stopped, 30, 37), (stalled, 30, 31), (away, 30, 33), (late, 30, 31):
        first = end if end % 4 else end + 1  # every fourth sample has no staleness
        assert line == [i for i in always if i < begin or i > first], (begin, end, line)


# draws a timeline of `n` workers, among them one in each of the states; returns for each state the colours
# [r, g, b, opacity] from the top to the bottom of its row
STATES = """
theme(arguments[0]);
const n = arguments[1], states = ["live", "slow", "late", "away", "excluded"];
run = new Run("", ROOM);
for (let i = 0; i < 10; i++)
    run.take({...sample(1.7e12 + 1000 * i, n), workers: Array.from({length: n}, (_, k) => [k + 1,
        ["live", "live", "suspect", "away", "excluded"][k] || "live", k === 1 ? 0 : 1000, null, 30, null])});
const c = $("timeline");
timeline(c, run);
const {x, top, row} = c.places, ratio = devicePixelRatio, height = (row === 4 ? row : row - 2) * ratio;
return states.map((_, i) => {
    const {data} = c.getContext("2d").getImageData(x(1.7e12 + 5500) * ratio, (top + i * row) * ratio, 1, height);
    return Array.from({length: height}, (_, i) => [...data.slice(4 * i, 4 * i + 4)]);
});
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("workers", [5, 200])
def test_the_states_have_contrast_and_differ(programs, browser, theme, workers):
    """Level AA of WCAG 2 requires a contrast of at least 3 between a state and the background. The
    colours differ for people with deuteranopia or protanopia, and each state has another shape."""
    open_page(programs, browser)
    card = browser.execute_script("stream.close(); stream = null; theme(arguments[0]); return color('card')", theme)
    card = "#ffffff" if card == "#fff" else card
    below = [int(card[i:i + 2], 16) for i in (1, 3, 5)]
    shapes, colours = [], []
    for column in browser.execute_script(MANY_SAMPLES + STATES, theme, workers):
        shapes.append(tuple(alpha > 0 for *_, alpha in column))
        shown = {"#" + "".join(f"{round(c * alpha / 255 + b * (1 - alpha / 255)):02x}" for c, b in zip(rgb, below))
                 for *rgb, alpha in column if alpha}
        assert len(shown) == 1, shown
        colours += shown
    assert all(contrast(c, card) >= 3 for c in colours), colours
    assert shapes[0] == shapes[1] and len(set(shapes)) == 4, shapes
    assert min_distance(colours) > 0.085, colours
    legend = browser.execute_script(
        "return [...document.querySelectorAll('.swatch:is(.live, .late, .away, .out)')].map(e => [e.clientHeight, e.offsetHeight])")
    assert len(legend) == len(set(map(tuple, legend))) == 4, "the legend has the shapes, too"


@pytest.mark.parametrize("name, room, short", [
    ("ada", 12, "ada"), ("rack1-node-001", 12, "rack1-…e-001"), ("rack1-node-001", 9, "rack…-001"),
    ("gpu-node-17.cluster.example.org", 14, "gpu-node-17…"), ("gpu-node-17.example.org", 9, "gpu-…-17…"),
    ("gpu-node-17.example.org-3", 14, "gpu-node-17…-3"), ("gpu-node-17.example.org-3", 9, "gpu-…7…-3"),
    ("gpu-node-17.example.org-3", 13, "gpu-no…-17…-3"), ("192.168.100.17", 10, "192.1…0.17")])
def test_labels_of_the_timeline_are_cut_in_the_middle(programs, browser, name, room, short):
    open_page(programs, browser)
    assert browser.execute_script(
        "return shortened(arguments[0], text => text.length <= arguments[1])", name, room) == short


@pytest.mark.parametrize("width", [390, 1280])
def test_names_of_hosts_with_numbers_differ_in_the_table(programs, browser, width):
    """Eight workers on each of two hosts of a cluster have the names HOST.DOMAIN-0 to HOST.DOMAIN-7."""
    with screen(browser, width):
        open_page(programs, browser)
        browser.execute_script("""
            status.workers = Array.from({length: 16}, (_, i) => ({worker: i + 1, state: "live", pid: 4711 + i,
                name: `gpu-node-0${i >> 3}.cluster.example.org-${i & 7}`, host: `gpu-node-0${i >> 3}.cluster.example.org`}));
            drawStatus(); stream.close();""")
        # the characters of each name that are visible, without those under an ellipsis
        names = browser.execute_script("""
            return [...$("workers").tBodies[0].rows].map(row => {
                const range = document.createRange(), walk = document.createTreeWalker(row.cells[1], NodeFilter.SHOW_TEXT);
                let seen = "";
                for (let node; node = walk.nextNode();) {
                    const span = node.parentElement, box = span.closest("td").getBoundingClientRect();
                    const room = span.scrollWidth > span.clientWidth ? span.getBoundingClientRect().right - 10 : box.right;
                    for (let i = 0; i < node.data.length; i++) {
                        range.setStart(node, i);
                        range.setEnd(node, i + 1);
                        seen += range.getBoundingClientRect().right <= Math.min(room, box.right) ? node.data[i] : "";
                    }
                }
                return seen;
            });""")
        assert len(set(names)) == 16, names


# returns the contrast between the text and the background of an element, as WCAG 2 defines it
CONTRAST = """
const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255).map(
    c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const e = document.querySelector(arguments[0]), ink = getComputedStyle(e).color;
let back = e;
while (/rgba\\(.*, 0\\)/.test(getComputedStyle(back).backgroundColor))
    back = back.parentElement;
const l = [light(ink), light(getComputedStyle(back).backgroundColor)].sort((a, b) => b - a);
return (l[0] + 0.05) / (l[1] + 0.05);
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(programs, browser, theme):
    """Level AA of WCAG 2 requires a contrast of at least 4.5."""
    open_page(programs, browser)
    browser.execute_script(
        "stream.close(); stream = null;"  # a later status would draw the table without workers
        "document.documentElement.dataset.theme = arguments[0];"
        "status.workers = ['live', 'suspect', 'away'].map((state, i) => ({worker: i + 1, state}));"
        "drawWorkers()", theme)
    for element in "#state", "tr.late td", "tr.away td", "#workers th", "dt", ".quiet":
        assert browser.execute_script(CONTRAST, element) >= 4.5, element


def test_phone_width_theme_and_keyboard(programs, small, browser):
    from selenium.webdriver.common.keys import Keys
    server = programs.server("--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    with screen(browser, 360, 740, scale=2, mobile=True):
        browser.get(url_of(server))
        until(lambda: "%" in text(browser, "accuracy"), 30, "the page shows an accuracy")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        assert "rmsprop" in text(browser, "model")
        assert browser.execute_script("return $('model').scrollWidth <= $('model').clientWidth"), "not cut"
    theme = browser.execute_script("return document.documentElement.dataset.theme")
    active = browser.switch_to.active_element
    active.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the charts"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.execute_script("return document.documentElement.dataset.theme") != theme


def test_a_screen_reader_names_what_the_keyboard_reaches(programs, browser):
    open_page(programs, browser)
    browser.execute_script(MANY_SAMPLES + """
        stream.close();
        stream = null;
        for (let i = 0; i < 40; i++)
            run.take(sample(Date.now() + 1000 * i, 3));
        run.take({t: Date.now() + 4e4, kind: "epoch", epoch: 1, accuracy: 0.5, test_loss: 1});
        draw();""")
    found = spoken(browser)
    assert len(found) > 6 and all(name for _, name, _ in found), found
    charts = [node for node in found if node[0] == "application"]
    assert len(charts) == 4 and all("arrow keys" in description for _, _, description in charts), found
    assert not [node for node in found if node[0] == "image"], "no picture takes keys"
    assert insides(browser, "application") == [], "no labels of an axis among the texts"


# JavaScript that makes the page show 200 workers with long host names
MANY_WORKERS = """
stream.close(); stream = null;
const at = Date.now() - 3e5;
run = new Run("", ROOM);
run.take({kind: "start", t: at, options: {}});
for (let i = 0; i < 300; i++)
    run.take(sample(at + 1000 * i, 200));
status.workers = Array.from({length: 200}, (_, i) => ({worker: i + 1, name: `worker-of-rack-${i % 9}-${i}`,
    state: i % 9 ? "live" : "suspect", images_per_s: 12345 + i, staleness: 199.5, silent_ms: 1234, host: `gpu-node-${i}.cluster.example.org`,
    pid: 1234567, device: "cuda:0 NVIDIA H200 tf32", last_seq: 12345678, duplicates: 123, rejected: 1234, refusals: 12}));
Object.keys(status.counters).forEach(name => status.counters[name] = 123456789);
status.counters.rejected_for = {stale: 123456789, work: 7};
drawStatus();
draw();
"""

def counter(browser, name):
    """Returns a number of the card "Exactly once"."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#once dt')].find(dt => dt.textContent === arguments[0])?.nextSibling.textContent", name)


def test_the_page_says_which_counter_begins_again_at_a_restart(programs, small, browser):
    options = ("--model", "seed:4", "--epochs", 3000, "--checkpoint-ms", 200)
    server = programs.server(*options)
    programs.worker(server.endpoint, data=small)
    socket_ = zmq.Context.instance().socket(zmq.DEALER)
    with contextlib.closing(socket_):
        socket_.linger = 0
        socket_.connect(server.endpoint)
        for _ in range(3):
            socket_.send_multipart([b"\xff"])  # cannot be decoded
        until(lambda: server.status()["counters"]["refusals"] == 3, 20, "refusals")
        until(lambda: server.status()["updates"], 20, "training")
        generation = until(lambda: server.status()["checkpoint"], 20, "a checkpoint")["generation"]
        until(lambda: server.status()["checkpoint"]["generation"] > generation + 1, 20, "a newer checkpoint")
        server.kill()
    server = programs.restart(server, *options)
    browser.get(url_of(server))
    until(lambda: counter(browser, "messages refused") == "0", 20, "the counter of this start")
    assert counter(browser, "gradients decided") != "0"
    card = browser.execute_script("return document.getElementById('once').parentElement.textContent")
    assert "messages that the server could not decode count since its start" in card


@pytest.mark.parametrize("width", [390, 700, 1300])
def test_the_header_shows_all_of_its_text(programs, browser, width):
    with screen(browser, width):
        open_page(programs, browser, "--validate", 5000,
                  model="conv:6:5:pad=same relu pool:2 conv:16:5 relu pool:2 fc:120 relu fc:84 relu fc:10")
        browser.execute_script("status.data.validate = 5000; drawStatus(); stream.close();")
        assert text(browser, "model").endswith("evaluated on 5,000 training images held back")
        assert browser.execute_script("""
            const box = $("model").getBoundingClientRect(), range = document.createRange();
            range.selectNodeContents($("model"));
            return [...range.getClientRects()].every(r => r.left >= box.left - 1 && r.right <= box.right + 1 &&
                r.top >= box.top - 1 && r.bottom <= box.bottom + 1) && box.right <= innerWidth;""")
        assert browser.execute_script(TOO_WIDE) == []


@pytest.mark.parametrize("width", [320, 390, 700, 920, 1300])
def test_the_name_of_a_checkpoint_is_on_one_line(programs, browser, width):
    """On a phone of 320 pixels, the name is longer than a line."""
    with screen(browser, width):
        open_page(programs, browser)
        name, lines, room = browser.execute_script("""
            status.checkpoint = {generation: 227};
            drawCounters();
            const dt = $("once").lastChild.firstChild, range = document.createRange();
            range.selectNodeContents(dt.lastChild);
            return [dt.textContent, new Set([...range.getClientRects()].map(r => r.top)).size, dt.clientWidth];""")
        assert name == "generation of the newest checkpoint, ckpt-00000000000000e3"
        assert lines == (1 if width > 320 else 2), (lines, room)
        assert browser.execute_script(TOO_WIDE) == []


# shows answers on the wall, which is the page's grid of test images; returns the height of each of
# them, and whether it fits into its tile
ANSWERS = """
onWall({side: [1, 1], images: [[0, 0], [9, 0], [arguments[0], arguments[0] - 1]].map(([label, answer]) =>
    ({pixels: "AA==", label, class: answer, sure: 1}))});
return [...document.querySelectorAll("#wall .answer")].map(p => [p.clientHeight, p.scrollWidth <= p.clientWidth]);
"""


@pytest.mark.parametrize("width", [360, 390, 420, 700, 1300, 1600])
def test_each_answer_on_the_wall_has_one_line(programs, browser, width):
    with screen(browser, width):
        open_page(programs, browser)
        for label in 8, 99:  # without names, a class is a number of one digit or more
            answers = browser.execute_script(ANSWERS, label)
            heights = [height for height, _ in answers]
            assert max(heights) == min(heights) < 30 and all(fits for _, fits in answers), answers
        for label in 998, 9998:  # long numbers take two lines, as names do
            answers = browser.execute_script(ANSWERS, label)
            assert all(height < 60 and fits for height, fits in answers), answers


NAMES_OF_CLASSES = """
const names = arguments[0];
onWall({side: [1, 1], names, images: Object.keys(names).map(n =>
    ({pixels: "AA==", label: (+n + 1) % Object.keys(names).length, class: +n, sure: 1}))});
return [...document.querySelectorAll("#wall li")].filter(li => {
    const p = li.children[1], after = getComputedStyle(p, "::after");
    return p.scrollWidth > p.clientWidth || p.scrollHeight > p.clientHeight || li.scrollHeight > li.clientHeight ||
        after.display !== "block" || !after.content.includes(names[(+Object.keys(names).find(n => p.textContent.endsWith(names[n])) + 1) % Object.keys(names).length]);
}).map(li => li.textContent);
"""


@pytest.mark.parametrize("width", [320, 390, 1300])
@pytest.mark.parametrize("names", [["Ankle boot", "automobile", "T-shirt/top", "Pullover"],
                                   [f"freshwater_fish_of_the_north_{i:02}" for i in range(24)]], ids=["short", "long"])
def test_whole_names_of_classes_are_on_the_wall(programs, browser, width, names):
    """A tile shows the whole answer, and below it the whole name of the right class, although a
    touch screen shows no titles."""
    with screen(browser, width):
        open_page(programs, browser)
        assert browser.execute_script(NAMES_OF_CLASSES, dict(enumerate(names))) == []
        assert browser.execute_script(TOO_WIDE) == []


# returns the elements that are wider than the window, or whose text does not fit into them
TOO_WIDE = """
const width = document.documentElement.clientWidth, scrolls = e => e.closest(".scroll, .skip, .said");
return [...document.querySelectorAll("body *")].filter(e => !scrolls(e) && e.checkVisibility() &&
    (e.getBoundingClientRect().right > width + 1 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth && !["hidden", "clip"].includes(getComputedStyle(e).overflowX)))
    .map(e => `${e.tagName} ${e.id} ${e.textContent.slice(0, 40)}`);
"""


# shows a run that diverges, and chooses the newest point of its losses; returns what the page says
# about it
DIVERGING = MANY_SAMPLES + """
stream.close();
stream = null;
run = new Run("", ROOM);
for (let i = 0; i < 60; i++)
    run.take({...sample(1.7e12 + 1000 * i, 1), loss: 2.3 * 10 ** (i / 2)});
status.loss = run.samples[59].loss;
status.updates = 9;
drawStatus();
draw();
$("chart-loss").dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
return [$("loss").textContent, $("legend-loss").querySelector("b").textContent, $("chart-loss").ariaLabel];
"""


@pytest.mark.parametrize("width", [320, 920])
def test_a_loss_of_any_size_is_short(programs, browser, width):
    with screen(browser, width):
        open_page(programs, browser)
        assert browser.execute_script(DIVERGING) == ["7.3e+29", "7.3e+29", "Loss now 7.3e+29"]
        assert browser.execute_script(TOO_WIDE) == []
    assert browser.execute_script("return [99999, 1e5, -1e5, 0.001, 1e-4, 0, null].map(lossText)") == \
        ["99,999.0000", "1.0e+5", "-1.0e+5", "0.0010", "1.0e-4", "0.0000", "–"]


@pytest.mark.parametrize("width", [320, 390, 920])
def test_long_numbers_fit_into_the_tiles(programs, browser, width):
    with screen(browser, width):
        open_page(programs, browser, model="vector:50")
        browser.execute_script("""
            stream.close();
            stream = null;
            Object.assign(status, {updates: 12345678901, max_updates: 100000000000, updates_per_s: 123456789, live_workers: 65535});
            drawStatus();""")
        assert text(browser, "epoch") == "12,345,678,901 / 100,000,000,000"
        assert browser.execute_script(TOO_WIDE) == []


# draws a run of arguments[0] updates per second; returns the labels of the chart of rates, and what the
# page says about the newest rate
SLOW = MANY_SAMPLES + """
stream?.close();
stream = null;
run = new Run("", ROOM);
for (let i = 0; i < 60; i++)
    run.take({...sample(1.7e12 + 1e5 * i, 1), updates: Math.round(arguments[0] * 100 * i)});
status.updates_per_s = arguments[0];
drawStatus();
draw();
$("chart-rate").dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
return [[...document.querySelectorAll("#chart-rate .dygraph-axis-label-y")].map(e => e.textContent),
    [$("rate").textContent, $("legend-rate").querySelector("b").textContent, $("chart-rate").ariaLabel]];
"""


def test_the_rate_of_a_slow_run_is_shown(programs, browser):
    """A run of many weights may make less than one update per second."""
    open_page(programs, browser, model="vector:50")
    for rate, shown in (0.3, "0.30"), (0.5, "0.50"), (1.5, "1.5"), (40, "40"), (0, "0"):
        labels, texts = browser.execute_script(SLOW, rate)
        assert len(labels) > 1 and all(len(label) <= 4 for label in labels), labels
        assert texts == [shown, shown, f"{shown} updates per second"]


# scrolls an element into the window; done when the browser has drawn it
IN_WINDOW = """
document.getElementById(arguments[0]).scrollIntoView();
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[1])));
"""


# returns the names in the table of workers whose end is not visible
CUT_ENDS = """
return [...document.querySelectorAll("#workers td:nth-child(2)")].filter(td => {
    const end = document.createRange(), room = td.getBoundingClientRect(), cut = td.querySelector(".cut");
    end.selectNodeContents(cut ? cut.lastChild : td);
    const box = end.getBoundingClientRect();
    return !box.width || box.left < room.left || box.right > room.right;
}).map(td => td.textContent);
"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_many_workers_fit_into_the_width(programs, browser, width):
    with screen(browser, width):
        open_page(programs, browser, model="conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:128 relu fc:10")
        browser.execute_script(MANY_SAMPLES + MANY_WORKERS)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(TOO_WIDE) == []
        assert "rejected: 123,456,789 stale, 7 work" in text(browser, "once")
        browser.execute_async_script(IN_WINDOW, "workers-box")
        if width == 1280:  # a desktop shows all columns without scrolling
            assert browser.execute_script(
                "const box = $('workers').parentElement; return box.scrollWidth <= box.clientWidth")
        assert len(browser.find_elements("css selector", "#workers tbody tr")) == 200
        # the table must not cut off the end of a name, because many names differ only at their end
        assert browser.execute_script(CUT_ENDS) == []
        assert browser.execute_script(
            "return $('workers').tBodies[0].rows[16].cells[1].textContent") == "worker-of-rack-7-16"


# makes 30 statuses of 200 workers, and counts the drawings of a status
LATE_EVENTS = """
texts = Array.from({length: 30}, (_, i) => {
    status.updates = status.counters.pushes = 1000 + i;
    status.workers.forEach(w => { w.last_seq = 1000 + i; w.images_per_s = 10 * i + w.worker; w.silent_ms = i; });
    return JSON.stringify(status);
});
really = drawStatus;
drawings = 0;
drawStatus = () => { drawings++; really(); };
"""

# JavaScript that passes all status events to the page at once, as after a delay of the network
SEND = """
for (const text of texts)
    events.dispatchEvent(new MessageEvent("status", {data: text}));
"""

# JavaScript that draws status number arguments[0] and makes the browser compute the layout
DRAW = "status = JSON.parse(texts[arguments[0]]); really(); document.body.offsetWidth"


@pytest.mark.alone
def test_a_slow_client_shows_the_newest_of_late_events(programs, browser):
    """A client that is 6 times as slow gets 30 statuses at once. The page draws each second at most
    once, so that it answers meanwhile, and then shows the newest status. The times are measured
    without the throttle, which itself uses CPU time, more on a busy machine."""
    open_page(programs, browser)
    browser.execute_script("window.events = stream;" + MANY_SAMPLES + MANY_WORKERS + LATE_EVENTS)
    browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 6})
    try:
        browser.execute_script(SEND)
        cells = until(lambda: browser.execute_script(
            "return drawings && [...$('workers').tBodies[0].rows[7].cells].map(td => td.textContent)"),
            10, "a drawing")
    finally:
        browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})
    time.sleep(1.5)
    assert browser.execute_script("return drawings") <= 2
    assert cells[0] == "8" and cells[3] == "298" and cells[8] == "1,029", cells
    sent = 6 * thread_ms(browser, SEND)
    took = [6 * thread_ms(browser, DRAW, i) for i in (0, 29)]
    assert sent < 1000 * PATIENCE and max(took) < 1000 * PATIENCE, (sent, took)


def test_a_token_protects_all_but_the_health(programs, browser, tmp_path):
    write_token(tmp_path / "token", TOKEN + "\n")
    server = programs.server("--model", "seed:4", "--http-token", tmp_path / "token",
                             "--http", "0.0.0.0:0")
    url = url_of(server).replace("0.0.0.0", "127.0.0.1")
    assert fetch(url + "/healthz")[::2] == (200, b"ok\n")
    for path in ("/", "/metrics", "/status", "/history", "/events", "/nothing"):
        status, headers, body = fetch(url + path)
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
        assert b"conv" not in body and TOKEN.encode() not in body
    for wrong in (TOKEN[:-1], TOKEN + "x", "", "Bearer"):
        assert fetch(url + "/metrics", Authorization=f"Bearer {wrong}")[0] == 401
        assert fetch(url + "/metrics", Cookie=f"{cookie_of(url)}={wrong}")[0] == 401
    assert fetch(url + "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    for before, after in ("", ""), (" ", ""), ("", "  "), ("  ", " "):  # as copied from a text
        assert log_in(url, before + TOKEN + after) == 303, (before, after)
    for wrong in (TOKEN[:8] + " " + TOKEN[8:], " ", "", " " * 1000):
        assert log_in(url, wrong) == 401, wrong

    browser.get(url + "/")
    assert "--http-token" in browser.find_element("css selector", "main label").text
    enter(browser, "not the token at all")
    until(lambda: "That is not the token" in browser.page_source, 10, "the refusal")
    enter(browser, " " + TOKEN + " ")
    until(lambda: browser.title.endswith("cnn-ps") and browser.find_elements("id", "accuracy"), 10,
          "the page")
    until(lambda: text(browser, "state") == "waiting", 10, "the cookie also opens the stream")
    browser.get(url + "/login")  # the address at which the form was after the wrong token
    until(lambda: browser.find_elements("id", "accuracy"), 10, "the page")
    assert browser.execute_script("return document.cookie") == "", "scripts cannot read the token"
    cookie = browser.get_cookie(cookie_of(url))
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"


def test_two_servers_of_a_host_have_two_cookies(programs, browser, tmp_path):
    """Cookies do not depend on the port, so the cookies of two servers must have different names."""
    urls = []
    for token in (TOKEN, TOKEN[::-1]):
        write_token(tmp_path / "token", token)
        server = programs.server("--model", "seed:4", "--http-token", tmp_path / "token",
                                 directory=token)
        urls.append(url_of(server))
        browser.get(urls[-1])
        enter(browser, token)
        until(lambda: browser.find_elements("id", "state"), 10, "the page")
    for url in urls:
        browser.get(url)
        assert browser.find_elements("id", "state") and not browser.find_elements("name", "token")


def test_an_open_page_asks_for_the_token_of_the_next_server(programs, browser, tmp_path):
    """When a server with another token starts, an open page asks for this token. The user need not
    load the page again."""
    def log_in_with(token):
        enter(browser, token)
        until(lambda: browser.find_elements("id", "state") and text(browser, "state") == "waiting", 10,
              "the page is live")
    options = ("--model", "seed:4", "--http-token", tmp_path / "token")
    write_token(tmp_path / "token", TOKEN)
    server = programs.server(*options)
    url = url_of(server)
    browser.get(url)
    # a cookie of another test may be valid here, if its server had the same port
    browser.delete_all_cookies()
    browser.get(url)
    log_in_with(TOKEN)
    server.kill()
    until(lambda: text(browser, "state") == "server away", 20, "the page says so")
    write_token(tmp_path / "token", TOKEN[::-1])
    programs.restart(server, *options, "--http", url.removeprefix("http://"))
    until(lambda: browser.find_elements("name", "token"), 20, "the form")
    log_in_with(TOKEN[::-1])


def test_labels_of_a_tiny_loss_are_short_and_differ(programs, browser):
    """Even for a loss such as 1e-12, each label of the axis fits on one line, and the page does not
    show the loss as 0.0000."""
    open_page(programs, browser)
    for last in (1e-12, 1e-6, 0.02, 2.1, 2.299):
        # one script, because a status event between two scripts would draw the page again
        labels, aria, lines = browser.execute_script(MANY_SAMPLES + """
            const last = arguments[0], at = Date.now() - 1e5; run = new Run("", ROOM);
            for (let i = 0; i <= 100; i++)
                run.take({...sample(at + 1000 * i, 1), loss: 2.3 * (last / 2.3) ** (i / 100)});
            draw();
            const labels = [...document.querySelectorAll('#chart-loss .dygraph-axis-label-y')];
            return [labels.filter(e => e.textContent).map(e => [e.textContent,
                        e.scrollWidth <= e.parentNode.clientWidth, e.offsetHeight]),
                    document.getElementById('chart-loss').ariaLabel,
                    curves[1].layout_.yticks.map(tick => tick.pos * curves[1].getArea().h)];""", last)
        assert len(labels) >= 3 and len({name for name, _, _ in labels}) == len(labels), labels
        for name, fits, height in labels:
            assert re.fullmatch(r"\d+(\.\d+)?(e-\d+)?", name) and fits and height < 20, labels
        assert abs(float(aria.removeprefix("Loss now ")) / last - 1) < 0.05, aria
        # over many powers of ten, the grid lines must be so few that they do not form a grey area
        if last < 1e-3:
            assert all(float(f"1e{round(math.log10(float(name)))}") == float(name)
                       for name, _, _ in labels), labels
            assert min(abs(a - b) for a, b in zip(lines, lines[1:])) > 10, lines


@pytest.mark.parametrize("content", ["short", "with blanks in the middle of it", "x" * 300])
def test_a_bad_token_file_is_refused(programs, tmp_path, content):
    write_token(tmp_path / "token", content)
    server = programs.server("--model", "seed:4", "--http-token", tmp_path / "token")
    assert server.wait(10) == 2
    assert "--http-token" in server.tail()


def test_a_token_that_others_can_read_is_refused(programs, tmp_path):
    """A token is as secret as a key, so its file must be readable only by its owner."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o644)
    server = programs.server("--model", "seed:4", "--http-token", tmp_path / "token")
    assert server.wait(10) == 2
    assert "mode 0644 permits others to read it; run chmod 600" in server.tail()


def test_streams_are_bounded_and_end_with_the_server(programs):
    server = programs.server("--model", "seed:4")
    host, port = url_of(server)[7:].split(":")
    streams = []
    for _ in range(17):
        streams.append(socket.create_connection((host, int(port)), timeout=5))
        streams[-1].sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    heads = [s.recv(4096).split(b"\r\n", 1)[0] for s in streams]
    assert sorted(heads) == 16 * [b"HTTP/1.1 200 OK"] + [b"HTTP/1.1 503 Service Unavailable"]
    assert json.loads(fetch(url_of(server) + "/status")[2])["state"] == "waiting"
    for s in streams:
        s.close()
    until(lambda: b"200 OK" in first_bytes(host, port), 10, "streams are free again")
    server.signal(15)
    assert server.wait(10) == 0


def test_a_page_without_a_stream_does_not_say_that_the_server_is_away(programs, browser):
    server = programs.server("--model", "seed:4")
    host, port = url_of(server)[7:].split(":")
    streams = [socket.create_connection((host, int(port)), timeout=5) for _ in range(16)]
    for s in streams:
        s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in s.recv(4096)
    browser.get(url_of(server))
    until(lambda: "16 pages are open" in text(browser, "notice"), 10, "the reason")
    assert text(browser, "state") == "not connected", "not a state of the run"
    for s in streams:
        s.close()
    until(lambda: text(browser, "state") == "waiting", 10, "the page")
    until(lambda: not text(browser, "notice").startswith("16"), 10, "no more reason")


def test_images_may_arrive_before_the_first_status(programs, browser):
    """When a worker sends images for the wall, the server sends them to all open streams. So the
    stream of a page that was opened just now may get images before its first status."""
    open_page(programs, browser)
    browser.execute_script("status = null; onWall({side: [1, 1], images: ["
                           "{pixels: 'AA==', class: 3, label: 3, sure: 0.5}]})")
    until(lambda: text(browser, "wall-note").startswith("1 of 1 test images"), 10, "the images")
    assert browser.get_log("browser") == [], "the console is clean"


# shows an image on the wall; returns the note under the wall after this
IMAGE = """
onWall({side: [1, 1], images: [{pixels: 'AA==', class: 3, label: 3, sure: 0.5}]});
return $("wall-note").textContent;
"""


def test_the_images_of_another_run_are_not_shown(programs, browser):
    """A server with a new run on the same port has no answers yet. A page that is still open must
    not go on to show the answers of the previous run."""
    server = open_page(programs, browser, directory="first")
    port = url_of(server).rsplit(":", 1)[1]
    assert "1 of 1" in browser.execute_script(IMAGE)
    assert "0 of 1" in browser.execute_script(IMAGE.replace("label: 3", "label: 5"))
    assert browser.execute_script("return getComputedStyle(document.querySelector("
                                  "'#wall .answer'), '::after').content") == '" ≠ 5"'
    first = browser.execute_script("return status.run")
    shown = "return $('wall-card').checkVisibility()"
    server.kill()
    until(lambda: text(browser, "state") == "server away", 20, "the page says so")
    same = programs.server("--model", "seed:4", "--http", f"127.0.0.1:{port}", directory="first")
    until(lambda: text(browser, "state") == "waiting", 30, "it is back")
    assert browser.execute_script(shown), "the images of the same run stay"
    same.signal(signal.SIGTERM)
    assert same.wait(20) == 0
    programs.server("--model", "seed:4", "--http", f"127.0.0.1:{port}", directory="second")
    until(lambda: browser.execute_script("return status.run") != first, 30, "the next run")
    assert not browser.execute_script(shown)
    assert browser.execute_script("return document.querySelectorAll('#wall li').length") == 0
    assert "1 of 1" in browser.execute_script(IMAGE) and browser.execute_script(shown)


def test_images_that_no_worker_evaluates_are_called_old(programs, browser):
    open_page(programs, browser, directory=None)
    note = browser.execute_script("status.live_workers = 1;" + IMAGE)
    assert "every other second" in note, note
    until(lambda: "when a worker evaluated them last" in text(browser, "wall-note"), 10,
          "a status without a live worker")


@pytest.mark.parametrize("rows, columns", [(22, 32), (32, 16), (28, 28)])
def test_images_keep_their_proportions(programs, browser, rows, columns):
    open_page(programs, browser)
    pixels = base64.b64encode(bytes(rows * columns)).decode()
    width, height, tile = browser.execute_script(
        "onWall({side: arguments[0], images: [{pixels: arguments[1], class: 3, label: 3, sure: 0.5}]});"
        "const c = document.querySelector('#wall canvas'); return [c.clientWidth, c.clientHeight, c.parentElement.clientWidth]",
        [rows, columns], pixels)
    assert width / height == pytest.approx(columns / rows, rel=0.05)
    assert tile - 14 < max(width, height) < tile


HIDE = """
Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
document.dispatchEvent(new Event("visibilitychange"));
return stream !== null;
"""


def test_a_hidden_page_has_no_stream(programs, browser):
    open_page(programs, browser)
    assert not browser.execute_script(HIDE, True)
    time.sleep(1.5)
    assert browser.execute_script("return stream") is None, "no timer connects again"
    assert browser.execute_script("status = null;" + HIDE, False)
    until(lambda: browser.execute_script("return status !== null"), 10, "a status")


def in_windows(browser, windows, script):
    """Run a script in each window. Returns the results."""
    results = []
    for window in windows:
        browser.switch_to.window(window)
        results.append(browser.execute_script(script))
    return results


def test_windows_of_one_browser_take_turns(programs, browser):
    """A browser opens at most six connections to a server, so more streams would leave the next
    window blank. The newest windows have a stream, and the others say why they have none."""
    server = programs.server("--model", "seed:4")
    first, windows = browser.current_window_handle, []
    states = "return document.getElementById('state').textContent"
    try:
        for _ in range(8):
            browser.switch_to.new_window("window")
            windows.append(browser.current_window_handle)
            browser.get(url_of(server))
            until(lambda: text(browser, "state") == "waiting", 10, "the page")
        until(lambda: in_windows(browser, windows, states) == 4 * ["paused"] + 4 * ["waiting"], 10,
              "the oldest windows are paused")
        assert all("in 4 other windows" in notice for notice in in_windows(
            browser, windows[:4], "return document.getElementById('notice').textContent"))
        assert in_windows(browser, windows, "return [lost > 0, run.samples.length > 0, stream !== null]") == \
            4 * [[True, True, False]] + 4 * [[False, True, True]]
        browser.switch_to.window(windows[0])
        browser.find_element("id", "notice").click()
        until(lambda: in_windows(browser, windows, states) ==
              ["waiting"] + 4 * ["paused"] + 3 * ["waiting"], 10, "the window that was clicked goes on")
        browser.switch_to.window(windows.pop())
        browser.close()
        until(lambda: sorted(in_windows(browser, windows, states)) == 3 * ["paused"] + 4 * ["waiting"], 10,
              "another window goes on")
        time.sleep(2)
        assert sorted(in_windows(browser, windows, states)) == 3 * ["paused"] + 4 * ["waiting"]
    finally:
        for window in windows:
            browser.switch_to.window(window)
            browser.close()
        browser.switch_to.window(first)


def test_an_ended_run_shows_nothing_old(programs, browser):
    open_page(programs, browser)
    rate, live, staleness, table, note = browser.execute_script(
        "stream.close(); stream = null;"
        "status.images_per_s = 900; status.live_workers = 1; status.staleness_mean = 1.5;"
        "status.workers = [{worker: 1, name: 'ada', state: 'live', images_per_s: 900, silent_ms: 20}];"
        "onWall({side: [1, 1], images: [{pixels: 'AA==', class: 3, label: 3, sure: 0.5}]});"
        "status.ending = 'done'; retry();"
        "return ['rate', 'live', 'staleness', 'workers', 'wall-note'].map(id => $(id).textContent)")
    assert rate == live == "–" and staleness == "" and "live" not in table and "900" not in table and "ada" in table
    assert note.startswith("1 of 1 test images right, when a worker evaluated them last.")


def test_the_curves_of_an_ended_run_are_complete(programs, small, browser):
    """The last epochs of a run arrive with its end, less than a second before the server exits."""
    server = open_page(programs, browser, "--epochs", 40)
    programs.worker(server.endpoint, data=small)
    accuracy = server.result()["accuracy"]
    until(lambda: "exited" in text(browser, "notice"), 10, "the page says that the server has exited")
    points, losses, curve, tile = browser.execute_script(
        "return [curves[0].numRows(), run.epochs.filter(e => curves[1].file_.some(row => +row[0] === run.axis.place(e.t))).length,"
        "$('chart-accuracy').getAttribute('aria-label'), $('accuracy').textContent]")
    assert points == losses == 40
    assert tile == f"{100 * accuracy:.2f} %"
    assert curve == f"Accuracy after epoch 40: {tile}"


def test_the_choice_of_dark_or_light_is_kept(programs, browser):
    open_page(programs, browser)
    shown = "return document.documentElement.dataset.theme"
    first = browser.execute_script(shown)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(shown) != first
    browser.refresh()
    until(lambda: text(browser, "state") == "waiting", 10, "the page")
    assert browser.execute_script(shown) != first
    # a browser that does not let the page store its choice
    browser.execute_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('refused'); }})")
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return keptTheme()") == "" and browser.execute_script(shown) == first
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_the_title_of_a_hidden_page_has_no_old_result(programs, small, browser):
    server = programs.server("--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    browser.get(url_of(server))
    until(lambda: "%" in browser.title, 20, "an accuracy in the title")
    browser.execute_script(HIDE, True)
    assert browser.title == "cnn-ps"
    time.sleep(1.2)
    assert browser.title == "cnn-ps"
    browser.execute_script(HIDE, False)
    until(lambda: "%" in browser.title, 20, "an accuracy in the title")


def test_without_javascript_the_page_says_so(programs):
    page = fetch(url_of(programs.server("--model", "seed:4")) + "/")[2]
    assert re.search(rb"<noscript>.*needs JavaScript", page)


@pytest.mark.parametrize("limit", [0, 100000])
def test_a_run_without_images_shows_updates(programs, browser, limit):
    server = programs.server("--model", "vector:5000", "--max-updates", limit)
    programs.ledger_worker(server.endpoint, 0, 5000, 2)
    browser.get(url_of(server))
    until(lambda: re.match(r"[1-9]", text(browser, "rate")), 10, "a rate")
    until(lambda: browser.execute_script("return curves[2].numRows()") > 1, 10, "a curve of the rate")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.tile h2, figcaption h2, #workers th')]"
        ".filter(e => e.offsetParent).map(e => e.textContent)")
    assert shown[:6] == ["Updates", "Loss", "Updates/s", "Workers", "Loss", "Updates per second"]
    assert "images/s" not in shown and "pushes" in shown
    assert re.fullmatch(r"[\d,]+ / 100,000" if limit else r"[\d,]+", text(browser, "epoch"))
    assert bool(browser.execute_script("return $('done').offsetParent")) == bool(limit)
    assert "updates per second" in browser.execute_script("return $('chart-rate').getAttribute('aria-label')")
    assert "updates/s" in text(browser, "legend-rate") and "test" not in text(browser, "legend-loss")
    assert not browser.execute_script("return $('key-faster').checkVisibility()")
    until(lambda: browser.execute_script("return run.samples.some(s => s.workers.length)"), 10, "a worker")
    browser.execute_script("$('timeline-box').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
    assert ": worker 1" in text(browser, "timeline-note") and "images/s" not in text(browser, "timeline-note")
    with screen(browser, 400):
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        tops = browser.execute_script(
            "return [...document.querySelectorAll('.tile')].filter(e => e.offsetParent).map(e => e.offsetTop)")
        assert tops[0] == tops[1] < tops[2] == tops[3]
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_the_timeline_is_painted_for_a_print_and_has_rows_of_the_dead(programs, browser):
    open_page(programs, browser)
    width, alive, dead, note = browser.execute_script(MANY_SAMPLES + """
        stream.close();
        stream = null;
        sees = false;
        const c = $("timeline"), draw = c.getContext("2d");
        draw.clearRect(0, 0, c.width, c.height);
        run = new Run("", ROOM);
        for (let i = 0; i < 60; i++)
            run.take(sample(1.7e12 + 1000 * i, i < 30 ? 2 : 1));
        dispatchEvent(new Event("beforeprint"));
        const {x, top, row} = c.places, alpha = (t, i) => draw.getImageData(x(t) * devicePixelRatio,
            (top + i * row + row / 2) * devicePixelRatio, 1, 1).data[3];
        $("timeline-box").dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
        return [c.width, alpha(1.7e12 + 50500, 0), alpha(1.7e12 + 50500, 1), $("timeline-note").textContent];
        """)
    assert width > 300 and alive > 60 and dead > 200
    assert "last message 30 ms before" in note


def test_a_start_without_a_sample_is_on_the_axis_of_the_timeline(programs, browser):
    """A server that was killed in its first second has written no sample. The page must draw its
    start on the axis, and must not draw over the names of the workers, which are left of the
    axis."""
    open_page(programs, browser)
    left, places, names = browser.execute_script(MANY_SAMPLES + """
        stream.close();
        stream = null;
        run = new Run("", ROOM);
        run.take({kind: "start", t: 1.7e12 - 6000, options: {}});
        run.take({kind: "worker", change: "joined", t: 1.7e12 - 5500, worker: 1, name: "ada"});
        run.take({kind: "start", t: 1.7e12 - 500, resumed: true});
        const c = $("timeline"), pixels = () => [...c.getContext("2d").getImageData(0, 0,
            c.places.left * devicePixelRatio, c.height).data].join();
        for (let i = 0; i < 3; i++)
            run.take(sample(1.7e12 + 1000 * i, 1));
        timeline(c, run);
        const drawn = pixels(), {left, x} = c.places, places = run.gaps[0].map(x);
        run.gaps = [];
        timeline(c, run);
        return [left, places, drawn === pixels()];""")
    assert left < places[0] < places[1] and names, (left, places, names)


def test_labels_of_an_axis_do_not_repeat(programs, browser):
    open_page(programs, browser)
    percents, times = browser.execute_script(MANY_SAMPLES + """
        stream.close();
        stream = null;
        run = new Run("", ROOM);
        for (let i = 0; i < 3; i++)
            run.take(sample(1.7e12 + 400 + 1000 * i, 1));
        for (let i = 1; i < 4; i++)
            run.take({t: 1.7e12 + 500 * i, kind: "epoch", epoch: i, accuracy: 1, test_loss: 0.1});
        const texts = [], fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            texts.push(text);
            fill.call(this, text, ...at);
        };
        draw();
        drawTimeline(true);
        timeline($("timeline"), run);
        CanvasRenderingContext2D.prototype.fillText = fill;
        texts.splice(0, texts.lastIndexOf("1  "));
        return [[...document.querySelectorAll("#chart-accuracy .dygraph-axis-label-y")].map(e => e.textContent),
            texts.filter(text => /\\d:\\d/.test(text))];""")
    assert len(percents) >= 2 and len(set(percents)) == len(percents), percents
    assert len(times) >= 2 and len(set(times)) == len(times), times


def first_bytes(host, port):
    with socket.create_connection((host, int(port)), timeout=5) as s:
        s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return s.recv(4096)


def test_a_stream_that_is_not_read_costs_nothing(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 1000)
    programs.worker(server.endpoint, data=small)
    host, port = url_of(server)[7:].split(":")
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stream.connect((host, int(port)))
    stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    begun = server.status()["updates"]
    end = time.monotonic() + 3
    until(lambda: time.monotonic() > end, 10, "three seconds")
    assert server.status()["updates"] > begun and server.status()["rss_bytes"] < 200 << 20
    stream.close()


def stream_event(url, name):
    """Returns the data of the next server-sent event with this name."""
    with urllib.request.urlopen(url + "/events", timeout=20 * PATIENCE) as stream:
        seconds = 0
        for line in stream:
            if line == b"event: %s\n" % name.encode():
                return json.loads(next(stream).removeprefix(b"data: "))
            seconds += line == b"event: status\n"
            if seconds > 20 * PATIENCE:
                break
    raise AssertionError(f"no event {name}")


def all_events(url):
    """Returns all events of a stream, as pairs of name and data, when the server ends it."""
    events, name = [], ""
    with urllib.request.urlopen(url + "/events", timeout=60 * PATIENCE) as stream:
        for line in stream:
            if line.startswith(b"event: "):
                name = line[7:-1].decode()
            elif line.startswith(b"data: "):
                events.append((name, json.loads(line[6:])))
    return events


def test_the_last_event_of_a_stream_is_the_end_of_the_run(programs, small):
    """In a run of less than a second, a stream gets the last evaluation, the end of the run and the
    last status before the server exits."""
    server = programs.server("--model", "seed:4", "--epochs", 3)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(all_events, url_of(server))
        time.sleep(0.3)
        programs.worker(server.endpoint, data=small)
        accuracy = server.result()["accuracy"]
        events = reading.result(timeout=60 * PATIENCE)
    lines = [data["kind"] for name, data in events if name == "line"]
    assert lines.count("epoch") == 3 and lines[-1] == "end"
    name, last = events[-1]
    assert name == "status" and last["ending"] == "done"
    assert abs(last["accuracy"] - accuracy) < 1e-6


def test_the_history_of_a_page_is_short(programs, browser):
    """Even if the history is full, a page gets less than 1 MiB of it, with samples from all times
    of the run. The page does not take the time between two of these samples for a time without a
    server."""
    options = ("--model", "seed:4")
    server = programs.server(*options, "--checkpoint-ms", 200)
    until(lambda: len(fetch(url_of(server) + "/history")[2].splitlines()) > 2, 20, "a sample")
    server.kill()
    file = server.directory / "history.jsonl"
    lines = file.read_text().splitlines()
    begun = json.loads(lines[0])["t"] - 4_000_000
    sample = json.loads(next(line for line in lines if '"kind":"sample"' in line))
    sample["workers"] = [[i + 1, "live", 100, 1.5, 30, None] for i in range(20)]
    with file.open("w") as out:
        out.write(json.dumps({**json.loads(lines[0]), "t": begun}) + "\n")
        out.writelines(json.dumps({**sample, "t": begun + 1000 * i}, separators=(",", ":")) + "\n"
                       for i in range(1, 4000))
    assert file.stat().st_size > 3_500_000
    server = programs.restart(server, *options, "--checkpoint-ms", 200)
    server.line("http listening")
    full = fetch(url_of(server) + "/history")[2]
    short = fetch(url_of(server) + "/history/short")[2]
    assert len(full) > 3_500_000 and 300_000 < len(short) < 1 << 20
    kept = [json.loads(line) for line in short.splitlines()]
    assert [o["kind"] for o in kept].count("start") == 2 and kept[0]["kind"] == "start"
    times = [o["t"] for o in kept if o["kind"] == "sample" and o["t"] <= begun + 3_999_000]
    steps = [b - a for a, b in zip(times, times[1:])]
    assert times[0] <= begun + 2000 and times[-1] > begun + 3_980_000 and len(set(steps[:-1])) == 1, steps
    browser.get(url_of(server))
    until(lambda: text(browser, "state") == "waiting", 10, "the page")
    until(lambda: browser.execute_script("return run.samples.length") > 100, 20, "the samples")
    (away,) = browser.execute_script("return run.gaps")
    # the page has loaded the history a moment after the test, so its last sample before the gap may
    # be a neighbour of the one that the test has
    assert abs(away[0] - times[-1]) <= 2000
    assert away[1] == next(o["t"] for o in kept[1:] if o["kind"] == "start")


def test_a_page_of_many_epochs_does_bounded_work(programs, browser):
    """Of the 20,000 epochs of a run, the page keeps at most 1,000, spread over the whole run, and
    in addition the best epoch."""
    open_page(programs, browser)
    browser.execute_script("""
        const at = Date.now() - 2e7; run = new Run("", ROOM);
        for (let i = 1; i <= 20000; i++)
            run.take({t: at + 1000 * i, kind: "epoch", epoch: i, accuracy: i == 777 ? 0.99 : 0.9, test_loss: 1});
        drawStatus(); draw();""")
    kept = browser.execute_script("return run.epochs.map(e => e.epoch)")
    assert 400 < len(kept) <= 1001 and kept[0] == 1 and kept[-1] == 20000
    steps = [b - a for a, b in zip(kept, kept[1:])][:-1]
    assert max(steps) <= 2 * min(steps), "thinned evenly"
    assert "best 99.00 %" in text(browser, "best")


def test_a_server_that_hangs_is_away(programs, browser):
    """A server that SIGSTOP has stopped closes no connection. Within seconds, the page says that no
    events arrive. After the server has continued, the timeline of the page still shows the gap."""
    server = open_page(programs, browser)
    until(lambda: browser.execute_script("return run.samples.length") >= 3, 20, "samples")
    server.signal(signal.SIGSTOP)
    until(lambda: text(browser, "state") == "server away", 20, "the page says so")
    assert "Nothing has arrived" in text(browser, "notice") and text(browser, "live") == "–"
    assert browser.execute_script("return run.absences.length") == 1
    time.sleep(4)
    server.signal(signal.SIGCONT)
    until(lambda: text(browser, "state") == "waiting", 20, "it is back")
    until(lambda: browser.execute_script("return run.gaps.length") == 1, 10, "the gap is marked")
    from_, to = browser.execute_script("return run.gaps[0]")
    assert to - from_ > 6000


AXIS = """
const at = 1.7e12; run = new Run("", ROOM);
run.take({t: at, kind: "start", options: {}});
for (let i = 1; i <= 60; i++) run.take(sample(at + 1000 * i, 3));
run.take({t: at + 7.26e6, kind: "start", resumed: true, options: {}});
for (let i = 1; i <= 60; i++) run.take(sample(at + 7.26e6 + 1000 * i, 3));
draw();
"""


@pytest.mark.parametrize("low, high", [(0.7, 2.3), (1.9, 2.3), (0.02, 2.3), (1e-9, 2.3), (0.31, 0.32)])
def test_all_parts_of_the_axis_of_losses_have_labels(programs, browser, low, high):
    open_page(programs, browser)
    ticks, pixels = browser.execute_script("""
        const [low, high] = arguments, at = Date.now() - 1e5; run = new Run("", ROOM);
        for (let i = 0; i <= 100; i++)
            run.take({t: at + 1000 * i, kind: "sample", loss: high * (low / high) ** (i / 100), images_per_s: 1, workers: []});
        draw();
        const g = curves[1], [a, b] = g.yAxisRange();
        return [lossTicks(a, b, g.getArea().h, name => g.getOptionForAxis(name, "y"), g).map(t => [t.label, g.toDomYCoord(t.v)]),
            [g.toDomYCoord(high), g.toDomYCoord(low)]];""", low, high)
    assert len({label for label, _ in ticks}) == len(ticks), ticks
    places = sorted(y for _, y in ticks)
    steps = [b - a for a, b in zip(places, places[1:])]
    assert min(steps) >= 14, ticks
    top, bottom = pixels
    edges = [top, *places, bottom]
    assert max(b - a for a, b in zip(edges, edges[1:])) < 0.42 * (bottom - top), ticks


def test_a_page_without_its_server_shows_one_state(programs, browser):
    """The page receives the last status, and the server ends before the page has drawn this
    status."""
    open_page(programs, browser)
    pushes, counted, rate = browser.execute_script("""
        rested = performance.now() + 1e6;
        status.counters.pushes = 3016;
        status.workers = [{worker: 1, name: "ada", state: "live", last_seq: 3016, images_per_s: 7}];
        stream.dispatchEvent(new MessageEvent("status", {data: JSON.stringify(status)}));
        showAway(Date.now(), "away");
        return [...["#workers tbody", "#once"].map(at => document.querySelector(at).textContent), $("rate").textContent];""")
    assert "3,016" in pushes and "3,016" in counted and rate == "–"


def test_a_long_pause_takes_little_of_the_axis(programs, browser):
    """The samples are those of two minutes of training, with a pause of two hours after the first
    minute."""
    server = open_page(programs, browser)
    server.signal(signal.SIGSTOP)  # so that no event of the server replaces the run of this test
    try:
        browser.execute_script("document.getElementById('timeline-box').scrollIntoView()")
        browser.execute_script(MANY_SAMPLES + AXIS)
        shown, whole = browser.execute_script(
            "const a = run.axis, [from, to] = run.gaps[0];"
            "return [a.place(to) - a.place(from), a.place(run.last) - a.place(run.starts[0].t)]")
        assert shown < 0.15 * whole < 30_000
        for ms in (0, 30_000, 60_000, 1_000_000, 7_260_000, 7_300_000):
            assert browser.execute_script(
                "return run.axis.time(run.axis.place(1.7e12 + arguments[0])) - 1.7e12", ms) == pytest.approx(ms, abs=1)
        labels = browser.execute_script(
            "return [...document.querySelectorAll('#chart-loss .dygraph-axis-label-x')].map(e => e.textContent)")
        assert len(labels) >= 2 and len(set(labels)) == len(labels), labels
        assert browser.execute_script(PAINTED, "timeline") > 0.8
        assert browser.get_log("browser") == [], "the console is clean"
    finally:
        server.signal(signal.SIGCONT)


def test_keys_and_pointer_choose_a_sample_of_the_timeline(programs, small, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    server = programs.server("--model", "seed:4", "--epochs", 3000)
    programs.worker(server.endpoint, "--name", "ada", data=small)
    browser.get(url_of(server))
    until(lambda: "%" in text(browser, "accuracy"), 30, "the page shows an accuracy")
    until(lambda: browser.execute_script("return run.samples.filter(s => s.workers.length).length") >= 3,
          30, "samples")
    box = browser.find_element("id", "timeline-box")
    note = "timeline-note"
    box.send_keys(Keys.END)
    assert re.search(r"^\d\d:\d\d:\d\d: worker 1 \(ada\): \w+, \d", text(browser, note))
    assert text(browser, "said") == text(browser, note)
    now = text(browser, note)
    box.send_keys(Keys.ARROW_LEFT)
    assert text(browser, note) != now
    browser.find_element("id", "theme").send_keys("")
    assert "arrow keys" in text(browser, note)
    ActionChains(browser).move_to_element(browser.find_element("id", "timeline")).perform()
    assert "worker 1 (ada)" in text(browser, note)
    ActionChains(browser).move_to_element(browser.find_element("id", "theme")).perform()


# draws a run whose samples are `step` seconds apart, and have their second as rate
RATES = MANY_SAMPLES + """
run = new Run("", ROOM);
for (let i = 0; i <= 60; i += arguments[0])
    run.take({...sample(1.7e12 + 1000 * i, 1), images_per_s: i});
draw();
return $("legend-rate").querySelector("b")?.textContent;
"""


def test_the_choice_of_a_key_stays_at_its_time(programs, browser):
    """When a run drops samples, the rows of its charts get other numbers."""
    from selenium.webdriver.common.keys import Keys
    server = open_page(programs, browser)
    server.signal(signal.SIGSTOP)  # so that no event of the server replaces the run of this test
    try:
        assert browser.execute_script(RATES, 1) is None
        chart = browser.find_element("id", "chart-rate")
        chart.send_keys(Keys.END, *20 * [Keys.ARROW_LEFT])
        assert [browser.execute_script(RATES, step) for step in (1, 2, 4)] == 3 * ["40"]
        chart.send_keys(Keys.ARROW_RIGHT)
        assert browser.execute_script(RATES, 4) == "44"
    finally:
        server.signal(signal.SIGCONT)


# a run of eleven days with long times without a server; returns the places [left, right] of the
# labels of each chart, the width of a chart, the texts of the timeline, and what the arrow keys say
DAYS = """
stream.close();
stream = null;
const hour = 3.6e6, texts = [], fill = CanvasRenderingContext2D.prototype.fillText;
let t = 1.7e12, epoch = 0;
run = new Run("", ROOM);
for (const [minutes, away] of [[25, 24 * hour], [3, 72 * hour], [3, 96 * hour], [25, 30 * hour], [20, 0]]) {
    run.take({kind: "start", t, resumed: epoch > 0, options: {}});
    for (let i = 1; i <= minutes; i++) {
        if (i % 5 === 0)
            run.take({t: t + 59500, kind: "epoch", epoch: ++epoch, accuracy: 1 - 0.3 / (epoch + 1), test_loss: 1 / (epoch + 1)});
        run.take({...sample(t += 60000, 2), epoch: epoch + 1});
    }
    t += away;
}
CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
    const {width} = this.measureText(text), m = this.getTransform(), left = (m.a * at[0] + m.e) / devicePixelRatio;
    if (this.canvas.id === "timeline")
        texts.push([text, left - {start: 0, left: 0, center: width / 2, right: width}[this.textAlign], width, at[1], m.b !== 0]);
    fill.call(this, text, ...at);
};
draw();
texts.length = 0;
drawTimeline(true);
CanvasRenderingContext2D.prototype.fillText = fill;
const range = document.createRange(), box = $("chart-loss").getBoundingClientRect();
const labels = ["accuracy", "loss", "rate"].map(id => [...document.querySelectorAll(`#chart-${id} .dygraph-axis-label-x`)].map(e => {
    const chart = $("chart-" + id).getBoundingClientRect();
    range.selectNodeContents(e);
    const {left, right} = range.getBoundingClientRect();
    return [left - chart.left, right - chart.left];
}));
const said = [], press = key => $("chart-loss").dispatchEvent(new KeyboardEvent("keydown", {key}));
for (let i = 0; i < 100; i++) {
    press("ArrowLeft");
    said.push($("said").textContent);
}
const legend = $("legend-loss").textContent, last = run.samples[run.samples.length - 1];
run.take({...last, t: t + 1000});
press("Home");
for (let i = 0; i < 100; i++) {
    said.push($("said").textContent);
    press("ArrowRight");
}
return [labels, box.width, texts, said, legend];
"""


@pytest.mark.parametrize("width", [320, 390, 1300])
def test_a_run_of_many_days_is_drawn_with_days(programs, browser, width):
    """The labels of an axis do not overlap, a time without a server has a label only if there is
    room, and the arrow keys find only points with values, with their day and their epoch, also after
    a sample that is not drawn yet."""
    with screen(browser, width):
        open_page(programs, browser)
        labels, room, texts, said, legend = browser.execute_script(MANY_SAMPLES + DAYS)
    for chart in labels:
        assert chart and chart[-1][1] <= room + 1 and chart[0][0] >= 0, chart
        assert all(b[0] >= a[1] + 4 for a, b in zip(chart, chart[1:])), chart
    flat = sorted((at, at + wide, words) for words, at, wide, y, upwards in texts if not upwards)
    dates = [o for o in flat if re.search(r"\d:\d\d$", o[2])]
    assert len(dates) >= 2 and all(b[0] >= a[1] + 4 for a, b in zip(dates, dates[1:])), dates
    assert [words for words, *_ in texts if re.fullmatch(r"[\d.]+ [hd]", words)] == \
        (["24.0 h", "3.0 d", "4.0 d", "30.0 h"] if width > 320 else [])
    assert len(set(said)) > 60
    for words in said:
        assert re.search(r"^\d+ Nov \d\d:\d\d:\d\d: epoch \d+ .*(training|test) \d", words), words
        assert not re.search(r"(training|test)\s*($|[^\s\d])", words), words  # no name without a value
    assert re.match(r"14 Nov \d\d:\d\d:\d\d · epoch 1\s", legend), legend


# chooses the newest point of each chart; returns the height of each caption before and after it
CAPTIONS = """
return ["accuracy", "loss", "rate"].map(id => {
    const box = $("chart-" + id), caption = box.parentElement.querySelector("figcaption"), before = caption.offsetHeight;
    box.dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
    return [before, caption.offsetHeight];
});
"""


@pytest.mark.parametrize("width", [320, 390, 700, 920, 1000, 1100, 1300])
@pytest.mark.parametrize("validate", [0, 1000])
def test_a_chart_does_not_move_when_a_point_is_chosen(programs, browser, width, validate):
    with screen(browser, width):
        open_page(programs, browser, "--validate", validate)
        browser.execute_script(MANY_SAMPLES + DAYS.replace("options: {}", f"options: {{validate: {validate}}}"))
        for before, after in browser.execute_script(CAPTIONS):
            assert before == after


@pytest.mark.parametrize("width", [320, 1300])
def test_a_time_axis_has_two_labels(programs, browser, width):
    """The run takes from seconds to months. The labels do not overlap."""
    with screen(browser, width):
        open_page(programs, browser)
        bad = browser.execute_script(MANY_SAMPLES + """
            stream.close();
            stream = null;
            const bad = [], range = document.createRange();
            for (let seconds = 5; seconds < 1e7; seconds *= 1.2) {
                run = new Run("", ROOM);
                for (let i = 0; i < 40; i++)
                    run.take(sample(1.7e12 + 25 * seconds * i, 1));
                draw();
                const labels = [...document.querySelectorAll("#chart-loss .dygraph-axis-label-x")];
                const box = $("chart-loss").getBoundingClientRect(), places = labels.map(e => {
                    range.selectNodeContents(e);
                    const {left, right} = range.getBoundingClientRect();
                    return [left, right];
                });
                if (places.length < 2 || places.some(([left, right], i) => left < box.left || right > box.right + 1 || i && left < places[i - 1][1] + 4))
                    bad.push([seconds, labels.map(e => e.textContent), places]);
            }
            return bad;""")
    assert bad == []


def test_the_newest_part_of_an_axis_has_a_label(programs, browser):
    """A run continues after ten days without a server. The next multiple of the step may be too close
    to the end of the axis for a label; the newest part then begins with a label if there is room."""
    open_page(programs, browser)
    rooms, none = browser.execute_script("""
        const hour = 3.6e6, begin = 1.7e12, none = [];
        let rooms = 0;
        for (const before of [1, 5, 20, 30, 96])
            for (let hours = 1; hours < 100; hours++)
                for (const pixels of [250, 330, 400, 1000]) {
                    const cut = [begin + before * hour, begin + (before + 240) * hour], to = cut[1] + hours * hour;
                    const axis = new Axis([cut], 0.08 * (before + hours) * hour), b = axis.place(to), newest = axis.place(cut[1]);
                    const ticks = axis.ticks(begin, b, pixels), px = v => (v - begin) / (b - begin) * pixels;
                    const last = ticks.findLast(({v}) => v < newest), label = labelWidth(to - begin);
                    if (px(newest) > pixels - label / 2 || last && px(newest) - px(last.v) < label + 8)
                        continue;
                    rooms++;
                    if (ticks[ticks.length - 1] === last)
                        none.push([before, hours, pixels]);
                }
        return [rooms, none];""")
    assert rooms > 50 and none == []


def test_names_are_cut_between_letters(programs, browser):
    """A letter may have accents, or be outside of the basic plane of Unicode. The parts of a name that
    is written from right to left would have a wrong order, so this name is not cut into parts."""
    open_page(programs, browser)
    for letter in ("e\u0301", "\U0001d4b3", "\U0001f469\u200d\U0001f52c"):
        name = 30 * letter + "-12"
        short, parts = browser.execute_script("""
            const td = document.createElement("td");
            fill(td, arguments[0]);
            return [shortened(arguments[0], text => letters(text).length <= 10),
                [...td.firstChild.childNodes].map(e => e.textContent)];""", name)
        assert set(short.replace(letter, "")) <= set("…-12") and short.endswith("-12"), short
        assert "".join(parts) == name and all(not part.replace(letter, "").strip("-12") for part in parts), parts
    arabic = "\u0639\u0627\u0645\u0644-" * 5 + "12"
    content, cut, label = browser.execute_script("""
        const td = document.createElement("td");
        fill(td, arguments[0]);
        return [td.textContent, td.querySelector(".cut"), isolated("ada") + isolated(arguments[0])];""", arabic)
    assert content == arabic and cut is None and label == f"ada\u2068{arabic}\u2069"


def fingers(browser, kind, *places):
    """Send a touch event, whose fingers are at these places of the window."""
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {
        "type": kind, "touchPoints": [{"x": x, "y": y} for x, y in places]})


SECOND_WORKER = """
const c = document.getElementById("timeline"), {left, top, width} = c.getBoundingClientRect();
return [left + width * 0.8, top + c.places.top + 1.5 * c.places.row];
"""


def test_a_finger_chooses_a_sample_of_the_timeline(programs, browser):
    """The choice stays when the finger is lifted, moves with the timeline, and ends when the finger
    touches another place. A finger that moves up or down scrolls the page."""
    server = open_page(programs, browser)
    server.signal(signal.SIGSTOP)  # so that no event of the server replaces the run of this test
    note = "timeline-note"
    try:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled",
                                {"enabled": True, "maxTouchPoints": 1})
        browser.execute_script("document.getElementById('timeline-box').scrollIntoView()")
        browser.execute_script(MANY_SAMPLES + AXIS)
        until(lambda: browser.execute_script("return !!document.getElementById('timeline').places"),
              10, "the timeline")
        x, y = browser.execute_script(SECOND_WORKER)
        fingers(browser, "touchStart", (x, y))
        until(lambda: ": worker 2: live, 1 images/s" in text(browser, note), 10, "the sample")
        first = text(browser, note)
        fingers(browser, "touchMove", (x - 100, y))
        until(lambda: text(browser, note) != first, 10, "another sample")
        assert ": worker 2: live" in text(browser, note)
        fingers(browser, "touchEnd")
        # wait for the events that the browser sends after a touch; they must not end the choice of
        # the sample
        time.sleep(0.3)
        assert ": worker 2: live" in text(browser, note)
        place = "return parseFloat(document.querySelector('.cursor').style.left)"
        before = browser.execute_script(place)
        browser.execute_script(MANY_SAMPLES + "for (let i = 61; i <= 120; i++)"
                               "run.take(sample(1.7e12 + 7.26e6 + 1000 * i, 3)); draw();")
        assert browser.execute_script(place) < before - 5, "the mark moves with the sample"

        top = browser.execute_script("return scrollY")
        fingers(browser, "touchStart", (x, y))
        for dy in range(20, 121, 20):
            fingers(browser, "touchMove", (x, y + dy))
        fingers(browser, "touchEnd")
        until(lambda: browser.execute_script("return scrollY") < top, 10, "the page scrolls")
        until(lambda: "arrow keys" in text(browser, note), 10, "scrolling chooses nothing")

        def tap(place):  # repeated by until(), because the page may still be scrolling
            fingers(browser, "touchStart", place or browser.execute_script(SECOND_WORKER))
            fingers(browser, "touchEnd")
            return text(browser, note)
        until(lambda: "worker 2" in tap(None), 10, "the sample")
        until(lambda: "arrow keys" in tap((5, 5)), 10, "a touch of another place ends the choice")
        assert browser.get_log("browser") == [], "the console is clean"
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        server.signal(signal.SIGCONT)


def cpu_seconds(server):
    """Returns the CPU time of all threads of the server so far, exact to a microsecond."""
    threads = Path(f"/proc/{server.popen.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e9


def idle_second(server):
    """Measures the CPU time of the server per second three times. Returns the lowest value."""
    times = []
    for _ in range(3):
        begun, since = cpu_seconds(server), time.monotonic()
        time.sleep(1)
        times.append((cpu_seconds(server) - begun) / (time.monotonic() - since))
    return min(times)


@pytest.mark.alone
def test_a_viewer_costs_less_than_a_hundredth_of_a_core(programs):
    """The server sends one event per second to a stream. The test measures the CPU time of the
    whole server per event, not per second, so that a busy machine does not matter. When a viewer
    has left, the server uses as much time as before the viewer came. This bound allows 2 ms more,
    because the time of an idle server, about 4 ms per second, varies by up to 0.8 ms on a busy
    machine."""
    server = programs.server("--model", "seed:4")
    url, events, used = url_of(server), 5, []
    before = idle_second(server)
    with urllib.request.urlopen(url + "/events", timeout=60 * PATIENCE) as stream:
        for line in stream:
            if line == b"event: status\n":
                used.append(cpu_seconds(server))
            if len(used) > events:
                break
    assert used[-1] - used[0] <= PATIENCE * 0.01 * events, used
    # wait: the server notices that the viewer has gone only when it writes to its connection
    time.sleep(3)
    after = idle_second(server)
    assert after <= before + PATIENCE * 0.002, "nothing to send"


# The images of a worker take more bytes than the weights of seed:1, and fewer than those of seed:4.
@pytest.mark.parametrize("mode, model", [("downpour", "seed:4"), ("sync", "seed:4"), ("easgd", "seed:4"),
                                         ("downpour", "seed:1")])
def test_workers_show_images(programs, small, mode, model):
    server = programs.server("--model", model, "--epochs", 65536, "--mode", mode)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["updates"] > 10, 20, "training")
    wall = stream_event(url_of(server), "wall")
    assert len(wall["images"]) == 24 and wall["side"] == [28, 28] and not wall["color"]
    for image in wall["images"]:
        assert len(base64.b64decode(image["pixels"])) == 28 * 28
        assert 0 <= image["class"] <= 9 and 0.1 <= image["sure"] <= 1
    assert stream_event(url_of(server), "wall") and not [line for line in worker.lines
                                                             if "connection_lost" in line]


def wall_of(programs, small, names):
    """Train with the images of `small`, whose classes have these names: a file classes.txt has one
    per line. Returns the server and the images of the wall."""
    place = programs.directory / "named"
    place.mkdir()
    for file in small.iterdir():
        (place / file.name).symlink_to(file)
    (place / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    server = programs.server("--model", "seed:4", "--epochs", 3000)
    programs.worker(server.endpoint, data=place)
    until(lambda: server.status()["updates"] > 10, 20, "training")
    return server, stream_event(url_of(server), "wall")


NAMES = ["ankle boot", 'a "bag"', "<b>coat</b>", "dress", "\u540d\u524d\x1b[31m", *"fghi"]


def test_the_wall_names_the_classes_of_the_data_set(programs, small, browser):
    """Class 9 has no name. The page shows a name as plain text, whatever characters it has."""
    server, wall = wall_of(programs, small, NAMES)
    assert len(wall["images"]) == 24
    shown = {image[key] for image in wall["images"] for key in ("class", "label")}
    names = {str(i): name.replace("\x1b", "?") for i, name in enumerate(NAMES) if i in shown}
    assert wall["names"] == names and 9 in shown
    browser.get_log("browser")
    browser.get(url_of(server))
    until(lambda: len(browser.find_elements("css selector", "#wall li")) == 24, 20, "the wall")
    title = browser.execute_script("return document.querySelector('#wall li').title")
    assert re.fullmatch(r"label 7 \(h\); answer \d( \(.*\))?, [\d.]+ % sure", title), title
    answers = browser.execute_script("""
    onWall({side: [1, 1], names: %s, images: [2, 9].map(n => ({pixels: 'AA==', class: n, label: n, sure: 1}))});
    return [...document.querySelectorAll("#wall .answer")].map(p => p.textContent);
    """ % json.dumps(names))
    assert answers == ["\u2713 <b>coat</b>", "\u2713 9"]
    assert browser.get_log("browser") == [], "the console is clean"


def test_a_data_set_without_names_shows_numbers(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 3000)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["updates"] > 10, 20, "training")
    assert "names" not in stream_event(url_of(server), "wall")


def test_long_names_on_the_wall_leave_room_for_the_images(programs, small):
    """All names in an answer together have a limited length, so only the first of many long names
    are sent."""
    _, wall = wall_of(programs, small, [100 * '"' + str(i) for i in range(10)])
    assert len(wall["images"]) == 24 and set(wall["names"].values()) == {63 * '"'}

"""All figures in docs/ have the same style: docs/figures.gp has the colours and the rules of this
style."""
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from support.build import ROOT, without

FIGURES = sorted((ROOT / "docs").glob("**/*.svg"))
STYLE = (ROOT / "docs/figures.gp").read_text()
INK = re.search(r'^ink = "(#\w+)"', STYLE, re.M)[1]
COLOURS = re.findall(r"#[0-9a-f]{6}", re.search(r"^array colour.*", STYLE, re.M)[0])
WHITE, DARK = "#ffffff", "#0d1117"  # the backgrounds of GitHub's light and dark pages
# Matrices that convert linear RGB to the colours that people with deuteranopia or protanopia see
# (Machado, Oliveira and Fernandes, 2009).
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
              [-0.003882, -0.048116, 1.051998]]
# Matrices that convert linear RGB to Oklab (Ottosson, 2020). In the colour space Oklab, equal
# distances look equally large to people.
TO_CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
          [0.0883024619, 0.2817188376, 0.6299787005]]
TO_OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
          [0.0259040371, 0.7827717662, -0.8086757660]]
# the texts that each figure must have: the names of its axes, and tick labels with units
AXES = {
    "kill.svg": ("training loss", "logarithmic", "time since the start of the server", "2 s", "cores", "live", "away"),
    "ladder/cores.svg": ("threads", "time of a step", "100 ms"),
    "ladder/memory.svg": ("size of the copy", "1 KiB", "time until it is complete", "100 µs",
                          "bytes per second", "1 GB/s"),
    "ladder/phases.svg": ("share of the time of a step", "20 %"),
    "ladder/predictions.svg": ("0.01 s", "89.9 %"),
    "ladder/steps.svg": ("time of a step of 1000 images", "10 ms"),
    "ladder/sweep.svg": ("images in a batch", "filters of the convolution", "time of a step", "10 ms"),
    "modes/mlp/curves.svg": ("time, s", "test accuracy, %", "training loss, mean over recent pushes"),
    "modes/mlp/workers.svg": ("workers", "time to 97 % of the test images, s", "never"),
    "modes/seed32/curves.svg": ("time, s", "test accuracy, %",
                                "training loss, mean over recent pushes"),
    "modes/seed32/staleness.svg": (
        "staleness: versions between the weights of a gradient and its arrival",
        "share of the gradients, %"),
    "modes/seed32/workers.svg": ("workers", "time to 97 % of the test images, s", "never"),
    "modes/wall/workers.svg": ("workers", "time to 97 % of the test images, s"),
}
MACHINE = {"ladder": "one NVIDIA H200, 16 cores of a Xeon", "seed32": "10 Gbit/s at the server's link",
           "mlp": "0.5 Gbit/s at the server's link", "wall": "one NVIDIA H200 and 16 cores, one host"}


def linear(colour):
    c = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    """Returns the contrast ratio of two colours, as WCAG defines it."""
    one, other = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (other + 0.05) / (one + 0.05)


def oklab(light):
    return np.array(TO_OKLAB) @ np.cbrt(np.array(TO_CONES) @ np.clip(light, 0, 1))


def min_distance(colours, sights=(np.eye(3), DEUTERANOPIA, PROTANOPIA)):
    """Returns the smallest distance between two of the colours for people with any of these sights."""
    seen = [[oklab(np.array(sight) @ linear(c)) for c in colours] for sight in sights]
    return min(float(np.linalg.norm(a - b)) for views in seen for i, a in enumerate(views) for b in views[:i])


def name(path):
    return str(path.relative_to(ROOT / "docs"))


def colours_of(text):
    """Returns every colour with which the SVG file draws something."""
    found = {f"#{int(r):02x}{int(g):02x}{int(b):02x}" for r, g, b in
             re.findall(r"rgb\( *(\d+), *(\d+), *(\d+)\)", text)}
    found |= {c.lower() for c in re.findall(r"#[0-9a-fA-F]{6}\b", text)}
    # gnuplot gives its groups the colour black, but each element in a group has its own colour
    drawn = re.sub(r"<g [^>]*>\s*</g>", "", re.sub(r"<defs>.*?</defs>", "", text, flags=re.S))
    if "Gnuplot" in text:
        found |= {e for e in re.findall(r"<(?:path|use|polygon|circle)[^>]*>", drawn) if "rgb(" not in e}
    return found | set(re.findall(r"(?:fill|stroke)=.(black|white|gr[ae]y)", drawn))


def words_of(path):
    root = ElementTree.parse(path).getroot()
    return [re.sub(r"\s+", " ", "".join(e.itertext())).strip() for e in root.iter()
            if e.tag.endswith("}text")]


def test_the_colours_are_readable_on_white_and_on_dark():
    assert len(COLOURS) == len(set(COLOURS)) == 8
    for page in WHITE, DARK:
        assert contrast(INK, page) > 4.1
        assert [c for c in COLOURS if contrast(c, page) < 2.95] == []


@pytest.mark.parametrize("sight", [np.eye(3), DEUTERANOPIA, PROTANOPIA],
                         ids=["all colours", "deuteranopia", "protanopia"])
def test_the_colours_differ_for_everybody(sight):
    assert min_distance(COLOURS, [sight]) > 0.11


@pytest.mark.parametrize("path", FIGURES, ids=name)
def test_a_figure_belongs_to_the_family(path):
    text, words = path.read_text(), words_of(path)
    # the pictures of test digits have a white background
    pictures = {"#ffffff"} if path.name == "predictions.svg" else set()
    assert colours_of(text) - {INK, *COLOURS} == pictures
    assert not re.search(r"<rect x=\"0\" y=\"0\"[^>]*fill=\"(?!none)", text), "transparent"
    missing = [axis for axis in AXES[name(path)] if axis not in words]
    assert not [axis for axis in missing if not any(axis in w for w in words)]
    if path.name == "cores.svg":  # the figure must name only the CPU of the machine, not its GPU
        assert any("on the CPU, 16 cores of a Xeon" in w for w in words), "the machine"
    elif path.parent.name in MACHINE:
        assert any(MACHINE[path.parent.name] in w for w in words), "the machine"
    pages = "".join(p.read_text() for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
    assert f"{name(path)})" in pages or f"docs/{name(path)})" in pages, "a page shows it"


@pytest.mark.parametrize("path", FIGURES, ids=name)
def test_all_words_are_inside_the_figure(path, browser):
    """A viewer cuts what is outside of the figure. The widths of letters are those of the fonts of
    this machine; DejaVu Sans, the usual font of Linux, has wide letters."""
    browser.get(path.as_uri())
    outside = browser.execute_script("""
        const svg = document.documentElement, {width, height} = svg.viewBox.baseVal;
        const toFigure = svg.getScreenCTM().inverse();
        return [...svg.querySelectorAll("text")].filter(text => {
            const n = text.getNumberOfChars(), place = toFigure.multiply(text.getScreenCTM());
            const ends = n ? [text.getStartPositionOfChar(0), text.getEndPositionOfChar(n - 1)] : [];
            return ends.map(end => end.matrixTransform(place)).some(
                ({x, y}) => x < 0 || x > width || y < 0 || y > height);
        }).map(text => text.textContent.trim());""")
    assert outside == []


def places_of(path):
    """Returns the texts that gnuplot has drawn, as {text: (x, y)}; x and y are those of the anchor."""
    found = re.findall(r'<g transform="translate\(([\d.]+),([\d.]+)\)[^>]*>\s*<text>(.*?)</text>', path.read_text(), re.S)
    texts = [(re.sub("<.*?>", "", text).strip(), float(x), float(y)) for x, y, text in found]
    return {text: (x, y) for text, x, y in texts if text}


def test_an_axis_title_is_outside_of_the_other_panel():
    path = ROOT / "docs/ladder/memory.svg"
    right = max(float(x) for x in re.findall(r"M[\d.]+,[\d.]+ L[\d.]+,[\d.]+ L([\d.]+),[\d.]+ M", path.read_text())
                if float(x) < 600)
    # 14: the height of the letters of the axis title
    assert places_of(path)["bytes per second"][0] - 14 > right


@pytest.mark.parametrize("path", [p for p in FIGURES if p.parent.parent.name == "modes"], ids=name)
def test_an_axis_title_does_not_touch_the_legend(path):
    places = places_of(path)
    title = max(y for text, (_, y) in places.items() if text.startswith(("staleness:", "workers", "time, s")))
    legend = [y for y in sorted(y for _, y in places.values()) if y > title]
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', path.read_text())[1])
    # 21: one and a half lines; 4: the part of the letter g below the line
    assert legend[0] - title > 21 and height - legend[-1] > 4


def test_a_line_breaks_where_a_mode_never_reaches_the_target():
    """The measured numbers of workers have equal distances on their logarithmic axis. If a mode has
    no time for one of these numbers, a line across this number would suggest a time there."""
    path = ROOT / "docs/modes/seed32/workers.svg"
    places = places_of(path)
    step = places["16"][0] - places["8"][0]
    ink = tuple(int(INK[i:i + 2], 16) for i in (1, 3, 5))
    lines = re.findall(r"<path stroke='rgb\(([\d, ]+)\)'\s+d='(.*?)'", path.read_text(), re.S)
    lines = [d for colour, d in lines if tuple(map(int, colour.split(","))) != ink]
    assert len(lines) > 4
    for part in re.findall(r"M[^M]*", " ".join(lines)):
        xs = [float(x) for x in re.findall(r"([\d.]+),", part)]
        assert all(abs(b - a) < 1.5 * step for a, b in zip(xs, xs[1:])), part


@pytest.mark.parametrize("command, directory", [
    ([sys.executable, ROOT / "tests/bench/science", "--draw", "--to"], "modes/seed32"),
    ([sys.executable, ROOT / "tests/bench/science", "--draw", "--to"], "modes/mlp"),
    ([sys.executable, ROOT / "tests/bench/science", "--draw", "--to"], "modes/wall"),
    (["gnuplot", "-e"], "ladder")], ids=["seed32", "mlp", "wall", "ladder"])
def test_the_measurements_give_the_published_figures(command, directory, tmp_path):
    if not shutil.which("gnuplot"):
        without("gnuplot", "deploy/setup.sh bench")
    place = tmp_path / directory
    shutil.copytree(ROOT / "docs" / directory, place, ignore=shutil.ignore_patterns("*.svg"))
    if command[0] == "gnuplot":
        command = [*command, f"dir='{place}'", ROOT / "kernels/ladder/figures.gp"]
    else:
        command = [*command, place]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, cwd=tmp_path)
    drawn = sorted(place.glob("*.svg"))
    assert len(drawn) >= 1
    for path in drawn:
        published = ROOT / "docs" / directory / path.name
        assert words_of(path) == words_of(published)
        assert colours_of(path.read_text()) == colours_of(published.read_text())

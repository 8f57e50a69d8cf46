#!/usr/bin/env python3
"""Draws predictions.csv (run.sh) as an SVG on stdout: test digits and the predictions of each
stage.

    pictures.py PREDICTIONS.CSV >predictions.svg

Each column is a digit, each block of columns a training time, and each row a stage. A tile shows
the picture of the digit, as dark as the probability that the network gives to the right answer. The
small digit is the prediction, in the colour RIGHT or WRONG. The data set is in $CNN_DATA or in one
of the default directories, and must be the data set that the table was measured with. If the data
set is another one, the exit status is 6. The script needs NumPy.
"""
import base64
import csv
import struct
import sys
import zlib
from html import escape
from pathlib import Path

from stage0 import SHOWN, read_idx

PICTURES = 5  # number of test images that are drawn
TILE, LEFT, TOP, SHARE, GAP = 31, 168, 78, 48, 14
INK, RIGHT, WRONG = "#787d80", "#3d5cad", "#ff5c14"  # colours of docs/figures.gp


def png(pixels):
    """Returns a grey image as a data URL, dark on a light background."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(
            ">I", zlib.crc32(kind + body))
    height, width = pixels.shape
    rows = b"".join(b"\0" + (255 - row).tobytes() for row in pixels)
    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0,
                                                              0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(data).decode()


def text(x, y, words, size=12, colour=INK, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def tile(x, y, row):
    """Returns the SVG of a digit in a frame of the colour RIGHT or WRONG. The digit is as dark as
    the probability of its label."""
    size, picture = TILE - 3, TILE - 9
    sure, colour = float(row["of_label"]), RIGHT if row["prediction"] == row["label"] else WRONG
    return (f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="3" fill="#ffffff" '
            f'stroke="{colour}" stroke-width="1.6"/>'
            f'<use href="#d{row["image"]}" x="{x + 3}" y="{y + 3}" width="{picture}" '
            f'height="{picture}" opacity="{sure:.3f}"/>' +
            text(x + size - 1.5, y + size - 2, row["prediction"], 8, colour, "end",
                 "bold"))


def seconds_text(seconds):
    return f"{float(seconds):g} s"


def title(at, seconds):
    """Returns the title: the best accuracy after the shortest time, beside that of the first
    stage."""
    rows = [r for (_, s, image), r in at.items() if s == seconds and image == 0]
    best = max(rows, key=lambda r: float(r["right"]))
    return (f"After {seconds_text(seconds)} {best['rung']} reads {100 * float(best['right']):.0f} % of "
            f"the digits, {rows[0]['rung']} {100 * float(rows[0]['right']):.0f} %")


def machine():
    """Returns the name of the machine, which run.sh writes to a file beside the table."""
    file = Path(sys.argv[1]).parent / "machine.txt"
    return file.read_text().strip() if file.exists() else "unknown machine"


def shown_images(rows, table):
    """Returns the images to draw. Exits with status 6 if their labels differ from those of the
    table."""
    images, labels = read_idx("t10k-images-idx3-ubyte"), read_idx("t10k-labels-idx1-ubyte")
    for row in rows:
        image, label = int(row["image"]), int(row["label"])
        if image >= len(labels) or labels[image] != label:
            found = f"the label {labels[image]}" if image < len(labels) else "no label"
            print(f"pictures: {table} has the label {label} for test image {image}, the data set here "
                  f"{found}: the labels differ; set CNN_DATA to the data set of the table",
                  file=sys.stderr)
            sys.exit(6)
    return images[:SHOWN]


def main():
    with open(sys.argv[1]) as f:
        rows = list(csv.DictReader(f))
    stages = list(dict.fromkeys(r["rung"] for r in rows))
    times = list(dict.fromkeys(r["seconds"] for r in rows))
    at = {(r["rung"], r["seconds"], int(r["image"])): r for r in rows}
    block = PICTURES * TILE + SHARE + GAP
    width, height = LEFT + block * len(times), TOP + TILE * len(stages) + 14
    images = shown_images(rows, sys.argv[1])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif">',
           "<defs>" + "".join(
               f'<symbol id="d{i}" viewBox="0 0 28 28"><image width="28" height="28" '
               f'href="{png(images[i])}"/></symbol>' for i in range(PICTURES)) + "</defs>",
           text(LEFT, 20, title(at, times[0]), 15),
           text(LEFT, 38, f"the first {PICTURES} test digits, and the accuracy on 1000, by training "
                          f"time; seed:256, batches of 100, {machine()}", 11)]
    for t, seconds in enumerate(times):
        x = LEFT + t * block
        out.append(text(x, TOP - 10, seconds_text(seconds), 14, INK, "start", "bold"))
        out.append(text(x + PICTURES * TILE + 4, TOP - 10, "right", 11))
        for s, stage in enumerate(stages):
            y = TOP + s * TILE
            if (stage, seconds, 0) not in at:
                continue
            out += [tile(x + i * TILE, y, at[stage, seconds, i]) for i in range(PICTURES)]
            right = float(at[stage, seconds, 0]["right"])
            out.append(text(x + PICTURES * TILE + 2, y + 18, f"{100 * right:.1f} %", 12,
                            INK, "start",
                            "bold" if right >= 0.5 else "normal"))
    out += [text(LEFT - 10, TOP + s * TILE + 18, stage, 13, INK, "end")
            for s, stage in enumerate(stages)]
    print("\n".join(out + ["</svg>"]))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints the table of docs/ladder.md from steps.csv.

    table.py STEPS.CSV

The column "% of roofline" compares the time of the step with the shortest possible time. This is
the time of the arithmetic and, for a stage whose weights are on the host, of the copies. The rates
of arithmetic and of copies are those of an H200.
"""
import csv
import sys

# operations of a step of seed:256, by batch size; docs/ladder.md counts them
FLOP = {1000: 6.5e9, 100: 0.65e9}
COPIES = 2 * 1.74e6  # number of bytes of the copies of the weights and of the gradient
FP32, BF16, BUS = 60e12, 790e12, 50e9
PREDICTED = {"sequential": "5,000 to 10,000", "thread per image": "1,000", "fused": "650", "ring": "4",
             "wide ring": "3.5", "products": "2", "tiled": "0.65", "staged": "0.77",
             "dense push": "0.63", "pinned": "0.54", "graph": "0.56", "tensor cores": "0.52",
             "fc in forward": "0.49", "recomputed backward": "0.48",
             "production": "0.21", "local": "0.13"}
STAGES = ("numpy", *PREDICTED, "bf16", "persistent")
ON_THE_DEVICE = ("local", "bf16", "persistent", "cudnn local", "cudnn bf16")
IN_BF16 = ("bf16", "persistent", "cudnn bf16")


def floor_ms(rung, batch):
    """Returns the minimum time of a step in ms: the time of its arithmetic plus, if the weights are
    on the host, the time of its copies. Copies and arithmetic cannot overlap, because the first
    product needs the weights, and the last product completes the gradient."""
    seconds = FLOP[batch] / (BF16 if rung in IN_BF16 else FP32)
    if rung not in ON_THE_DEVICE:
        seconds += COPIES / BUS
    return seconds * 1e3


def number(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else \
        f"{ms:.2f}" if ms >= 0.1 else f"{ms:.3f}"


def percent(share):
    return f"{share:.0f}" if share >= 10 else f"{share:.1f}" if share >= 0.1 else f"{share:.2g}"


def main():
    with open(sys.argv[1]) as f:
        rows = [r for r in csv.DictReader(f) if r["filters"] == "256"]
    at = {(r["rung"], int(r["batch"])): r for r in rows}
    print("| | stage | predicted | 1000 images | five runs | times NumPy | % of roofline | error | "
          "100 | % |\n|---|---|---|---|---|---|---|---|---|---|")
    for rung in dict.fromkeys(r["rung"] for r in rows):
        cells = [str(STAGES.index(rung)) if rung in STAGES else "", rung, PREDICTED.get(rung, "-")]
        for batch in 1000, 100:
            r = at.get((rung, batch))
            if not r:
                cells += [""] * (5 if batch == 1000 else 2)
                continue
            ms = float(r["ms_median"])
            cells.append(number(ms))
            if batch == 1000:
                cells.append(f"{number(float(r['ms_low']))} to {number(float(r['ms_high']))}")
                cells.append(f"{float(at['numpy', 1000]['ms_median']) / ms:,.2g}"
                             if ms > 100 else
                             f"{float(at['numpy', 1000]['ms_median']) / ms:,.0f}")
            cells.append(percent(100 * floor_ms(rung, batch) / ms))
            if batch == 1000:
                cells.append(f"{float(r['error']):.0e}" if r["error"] else "")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

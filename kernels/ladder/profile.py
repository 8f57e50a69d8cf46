#!/usr/bin/env python3
"""Prints the phases of the production rung from the kernel times of Nsight Compute.

    ncu --clock-control none --graph-profiling node --metrics gpu__time_duration.sum --csv \\
        cnn-ladder steps --rung production --filters F --batch B --seconds 0 >NCU.CSV
    profile.py NCU.CSV STEPS.CSV        prints rows of phases.csv

The profiler runs kernels one by one. In a step, kernels can overlap, so the sum of the profiled
times can be longer than the step. The row "copies and waits" has the remaining time of the median
step in STEPS.CSV. The row "other" has all kernels that take less than 1 % of the step.
"""
import csv
import re
import sys

STEPS = 2  # number of steps of `steps --seconds 0`: a checked step and a profiled one


def kernels(path):
    """Returns the milliseconds of a step for each kernel, in the order of the first launches. The
    kernels that open() launches are included."""
    with open(path) as f:
        lines = [line for line in f if line.startswith('"')]
    total = {}
    for row in csv.DictReader(lines):
        name = re.sub(r"^void |\(anonymous namespace\)::|<unnamed>::|<.*|\(.*|_kernel\b.*", "", row["Kernel Name"]).replace("_", " ")
        nanoseconds = float(row["Metric Value"].replace(",", ""))
        assert row["Metric Unit"] == "ns", row["Metric Unit"]
        total[name] = total.get(name, 0) + nanoseconds * 1e-6 / STEPS
    return total


def main():
    with open(sys.argv[2]) as f:
        step = next(r for r in csv.DictReader(f) if r["rung"] == "production"
                    and (r["filters"], r["batch"]) == ("256", "1000"))
    median, timed = float(step["ms_median"]), kernels(sys.argv[1])
    small = sum(ms for ms in timed.values() if ms < median / 100)
    rows = [("kernel", name, ms) for name, ms in timed.items() if ms >= median / 100]
    rows.append(("kernel", "other", small))
    rows.append(("host", "copies and waits", max(median - sum(timed.values()), 0)))
    for kind, name, ms in rows:
        print(f"production,256,1000,{kind},{name},{ms:.4f}")


if __name__ == "__main__":
    main()

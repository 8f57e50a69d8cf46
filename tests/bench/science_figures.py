"""Draw the figures of tests/bench/science from the runs of one network. The figures show the time
to 97 % accuracy by number of workers, accuracy and training loss by time, and the staleness of
gradients.

A point is the mean over the seeds, and its error bar is the 95 % t-interval. If a mode does not
reach 97 % with every seed, the figure says "never" for it.
"""
import math
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

from science_modes import MODES

TARGET = 0.97
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
# the modes in each of the two panels of a figure, at most eight each
PANELS = {
    "seed32": (("the modes", ("sgd", "adagrad", "downpour", "ssp", "sync", "easgd", "lbfgs")),
               ("remedies", ("sgd", "inverse", "dc", "adagrad", "warm", "prefetch", "buffer",
                             "backup"))),
    "mlp": (("one pull and push per batch", ("downpour", "prefetch", "sync", "easgd")),
            ("fewer messages", ("downpour", "push8", "easgd", "easgd8"))),
    "wall": (("the modes", ("sgd", "downpour", "ssp", "sync", "easgd")),),
}
HERE = Path(__file__).resolve().parent
STYLE = HERE.parents[1] / "docs/figures.gp"
# the legend below a panel; its empty title separates it from the title of the axis
KEY = "set key below left Left reverse title ' ' textcolor rgb ink"


def reached(points, target):
    """Returns the time at which the accuracy first reaches the target, interpolated between two
    evaluations, or None if it never does."""
    before = None
    for seconds, accuracy in points:
        if accuracy >= target:
            if before is None:
                return seconds
            part = (target - before[1]) / (accuracy - before[1])
            return before[0] + part * (seconds - before[0])
        before = seconds, accuracy
    return None


def interval(values):
    """Returns (mean, half of the 95 % t-interval)."""
    n = len(values)
    half = T95.get(n, 2) * statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0
    return statistics.mean(values), half


class Runs:
    """The contents of runs.csv. ends[mode, workers] = rows of the kind "end"; points[mode,
    workers][seed] = [(seconds, accuracy, loss)]; stale[mode, workers][staleness] = number of
    gradients."""

    def __init__(self, path):
        self.ends, self.points = defaultdict(list), defaultdict(lambda: defaultdict(list))
        self.stale = defaultdict(lambda: defaultdict(int))
        self.title = ""
        for line in path.read_text().splitlines():
            if line.startswith("#"):
                self.title = line[2:]
                continue
            kind, mode, workers, seed, *rest = line.split(",")
            key = mode, int(workers)
            if kind == "point":
                self.points[key][int(seed)].append((float(rest[0]), float(rest[-1]),
                                                    float(rest[3])))
            elif kind == "staleness":
                self.stale[key][rest[0]] += int(rest[1])
            else:
                self.ends[key].append(rest)

    def counts(self):
        return sorted({w for _, w in self.ends})

    def times(self, mode, workers):
        """Returns the seconds to the target for each seed; None stands for never."""
        return [float(r[-2]) if r[-2] else None for r in self.ends[mode, workers]]

    def accuracies(self, mode, workers):
        return [100 * float(r[3]) for r in self.ends[mode, workers]]

    def best_single(self):
        """Returns (median time to the target in seconds, mode) of the mode that is fastest with one
        worker."""
        alone = [(statistics.median(t), m) for m in MODES
                 if (t := self.times(m, 1)) and None not in t]
        return min(alone) if alone else None


def block(name, rows):
    return f"${name} << EOD\n" + "".join(" ".join(
        f"{v:g}" if isinstance(v, float) else str(v) for v in r) + "\n" for r in rows) + "EOD\n"


def gnuplot(text):
    subprocess.run(["gnuplot"], input=text, text=True, check=True)


def page(out, size):
    return f"load '{STYLE}'\neval figure('{out}', {size})\n"


def titled(runs, title, of="mean and 95 % t-interval of the seeds"):
    network = runs.title.split("; ", 1)[-1]
    result, measured = (text.replace("'", "''").replace("_", "\\_") for text in (title, network))
    return f"title titled('{result[0].upper() + result[1:]}', '{measured}; {of}') textcolor rgb ink\n"


def fastest(runs, modes, counts):
    """Returns (mean time to the target, mode, workers) of the fastest combination of mode and
    number of workers. A combination counts only if its runs reach the target with every seed."""
    return min((interval(times)[0], mode, workers) for mode in modes for workers in counts
               if (times := runs.times(mode, workers)) and None not in times)


def times_as_fast(runs, modes):
    """Returns the title of the figure that time_by_workers draws."""
    mean, mode, workers = fastest(runs, modes, runs.counts())
    single = runs.best_single()[0]
    return (f"{MODES[mode].name} with {workers} workers reaches 97 %"
            f" {single / mean:.1f} times as fast as the best single worker")


def time_series(runs, mode):
    """Returns (rows, never). rows has (workers, mean, low, high) for each number of workers with
    which every seed reaches the target. never has the numbers of workers with which a seed does not
    reach the target; rows then has an empty row, at which gnuplot breaks the line."""
    rows, never = [], []
    for workers in runs.counts():
        times = runs.times(mode, workers)
        if times and None in times:
            never.append(workers)
            rows.append(())
        elif times:
            mean, half = interval(times)
            rows.append((workers, mean, max(mean - half, mean / 4), mean + half))
    return rows, never


def time_panel(runs, modes, tag, top):
    text, plots = "", []
    for i, mode in enumerate(modes):
        rows, never = time_series(runs, mode)
        style = MODES[mode].style
        text += block(f"{tag}{i}", rows if any(rows) else [(1, "NaN", "NaN", "NaN")])
        plots.append(f"${tag}{i} using 1:2:3:4 with yerrorlines ls {style} "
                     f"title '{MODES[mode].name}'")
        if never:
            shift = 1 + 0.035 * (i - len(modes) / 2)
            text += block(f"{tag}n{i}", [(w * shift, top) for w in never])
            plots.append(f"${tag}n{i} using 1:2 with points ls {style} notitle")
    best = runs.best_single()
    if best:
        plots.append(f"{best[0]:g} with lines dt 2 lw 1.5 lc rgb ink "
                     f"title 'best single worker: {best[0]:.2f} s'")
    return text + "plot " + ", \\\n".join(plots) + "\n"


def time_by_workers(runs, panels, out):
    times = [t for _, modes in panels for m in modes for w in runs.counts()
             for t in runs.times(m, w)]
    fastest, top = min(t for t in times if t), 40
    above, tick = (top, f",'never' {top}") if None in times else (2 * max(times), "")
    text = page(out, f"{max(560 * len(panels), 820)},640")
    text += (f"set multiplot layout 1,{len(panels)} "
             + titled(runs, times_as_fast(runs, [m for _, modes in panels for m in modes])))
    text += ("set logscale xy\nset xtics (1,2,4,8,16)\nset xrange [0.8:20]\n"
             f"set yrange [{0.7 * fastest:g}:{above * 1.25:g}]\n"
             f"set ytics (0.1,0.2,0.3,0.5,1,2,5,10,20{tick})\n"
             "set xlabel 'workers' offset 0,0.4\nset ylabel 'time to 97 % of the test images, s'\n"
             f"{KEY} maxcols 2 samplen 2 noenhanced\n"
             f"set tmargin {3 if len(panels) > 1 else 1}\n")
    for i, (name, modes) in enumerate(panels):
        text += f"set title '{name if len(panels) > 1 else ''}'\n" + time_panel(runs, modes, f"p{i}_", top)
    gnuplot(text + "unset multiplot\n")


def curve(by_seed, column):
    """Returns (seconds, mean, low, high) for each time at which every seed has an evaluation."""
    at = defaultdict(list)
    for points in by_seed.values():
        for p in points:
            at[round(p[0], 3)].append(p[column])
    rows = []
    for seconds, values in sorted(at.items()):
        if seconds > 0 and len(values) == len(by_seed):
            mean, half = interval(values)
            rows.append((seconds, mean, mean - half, mean + half))
    return rows


def curves(runs, modes, workers, out):
    mean, best, _ = fastest(runs, modes, [workers])
    text = page(out, "1120,620")
    text += "set multiplot layout 1,2 " + titled(
        runs, f"With {workers} workers {MODES[best].name} is the first to reach 97 %, after"
              f" {mean:.2f} s")
    text += ("set logscale x\nset xlabel 'time, s' offset 0,0.4\nset xrange [0.1:*]\nset tmargin 1\n"
             f"{KEY} maxcols 2 samplen 2 noenhanced\n")
    panels = (("test accuracy, %", 1, 100, "set yrange [80:99.5]\n"),
              ("training loss, mean over recent pushes", 2, 1,
               "set yrange [0.01:*]\nset logscale y\n"))
    for label, column, scale, setting in panels:
        text += setting + f"set ylabel '{label}'\n"
        plots = []
        for mode in modes:
            rows = curve(runs.points[mode, workers], column)
            if not rows:
                continue
            # an interval may reach below 0, which a logarithmic axis does not have
            rows = [(t, scale * m, scale * max(lo, 1e-3), scale * hi) for t, m, lo, hi in rows]
            name = f"{mode}{column}"
            text += block(name, rows)
            style = MODES[mode].style
            plots.append(f"${name} using 1:3:4 with filledcurves fs transparent solid 0.15 "
                         f"noborder lc rgb colour[{style}] notitle")
            plots.append(f"${name} using 1:2 with linespoints ls {style} pointinterval 6 "
                         f"title '{MODES[mode].name}'")
        text += "plot " + ", \\\n".join(plots) + "\n"
    gnuplot(text + "unset multiplot\n")


def staleness(runs, modes, workers, out):
    """Draw the percentage of gradients with each staleness."""
    modes = [m for m in modes if runs.stale[m, workers]]
    ages = sorted({a for m in modes for a in runs.stale[m, workers]},
                  key=lambda a: int(a.split("-")[0]))
    rows = []
    for age in ages:
        totals = [sum(runs.stale[m, workers].values()) for m in modes]
        rows.append([f'"{age}"'] + [100 * runs.stale[m, workers][age] / t
                                    for m, t in zip(modes, totals)])
    largest = max(rows, key=lambda row: row[1])
    text = page(out, "1120,500") + block("ages", rows)
    text += "set " + titled(
        runs, f"With {workers} workers {largest[1]:.0f} % of the gradients of {MODES[modes[0]].name}"
              f" are {largest[0].strip(chr(34)).replace('-', ' to ')} versions old when they arrive",
        "all seeds together")
    text += ("set style data histogram\nset style histogram clustered gap 1\n"
             "set ylabel 'share of the gradients, %'\n"
             "set xlabel 'staleness: versions between the weights of a gradient and its arrival' offset 0,0.4\n"
             f"set yrange [0:*]\n{KEY} maxcols 3 noenhanced\n")
    gnuplot(text + "plot " + ", \\\n".join(
        f"$ages using {i + 2}:xtic(1) lc rgb colour[{MODES[m].style}] title '{MODES[m].name}'"
        for i, m in enumerate(modes)) + "\n")


def cells(runs, mode, workers):
    """Returns the cells of a table row as text: [rate, accuracy, median training loss, time], or []
    if the mode has no runs."""
    rows = runs.ends[mode, workers]
    if not rows:
        return []
    times = runs.times(mode, workers)
    if None in times:
        took = f"never ({times.count(None)} of {len(times)})"
    else:
        took = "{:.2f} ± {:.2f} s".format(*interval(times))
    losses = [float(r[-1]) for r in rows if r[-1]]
    return [f"{float(rows[0][-4]):g}" if rows[0][-4] else "",
            "{:.2f} ± {:.2f} %".format(*interval(runs.accuracies(mode, workers))),
            f"{statistics.median(losses):.3f}" if losses else "", took]


def print_table(titles, rows):
    """Print a Markdown table without the columns that are empty in every row."""
    used = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    print("| " + " | ".join(titles[i] for i in used) + " |\n|" + "---|" * len(used))
    for row in rows:
        print("| " + " | ".join(row[i] for i in used) + " |")


def table(runs, modes):
    for workers in runs.counts():
        rows = [[MODES[m].name, *found] for m in modes if (found := cells(runs, m, workers))]
        print(f"\n{workers} worker{'s' * (workers > 1)}:\n")
        print_table(["mode", "rate", "accuracy", "loss", "time to 97 %"], rows)


def at_defaults(runs, best):
    """Print the median accuracies and the median times to the target at the default learning rates.
    Beside each time is the speedup over the best single worker."""
    counts = runs.counts()
    accuracies, took = [], []
    for mode in dict.fromkeys(m for m, _ in runs.ends):
        name = MODES[mode].name
        times = {w: runs.times(mode, w) for w in counts}
        accuracies.append([name, *(f"{statistics.median(runs.accuracies(mode, w)):.2f} %"
                                   if times[w] else "" for w in counts)])
        took.append([name])
        for found in times.values():
            late = sum(t is None for t in found)
            middle = statistics.median(t or math.inf for t in found) if found else 0
            took[-1].append("" if not found else f"never ({late} of {len(found)})" if late else
                            f"{middle:.2f} s ({best / middle:.1f})")
    for what, rows in ("accuracy", accuracies), ("time to 97 %", took):
        print()
        print_table([what, *(str(w) for w in counts)], rows)


def draw(directory):
    runs = Runs(directory / "runs.csv")
    panels = PANELS[directory.name]
    last = runs.counts()[-1]
    present = {m for m, _ in runs.ends}
    panels = [(name, found) for name, modes in panels if (found := [m for m in modes
                                                                    if m in present])]
    time_by_workers(runs, panels, directory / "workers.svg")
    # Runs of real processes ("wall") report the accuracy only once per epoch, too seldom for a
    # curve.
    if directory.name != "wall":
        curves(runs, panels[0][1], last, directory / "curves.svg")
    if directory.name == "seed32":
        staleness(runs, ("sgd", "downpour", "ssp", "prefetch"), last, directory / "staleness.svg")
    table(runs, [m for m in MODES if m in present])
    if (directory / "defaults.csv").exists():
        at_defaults(Runs(directory / "defaults.csv"), runs.best_single()[0])

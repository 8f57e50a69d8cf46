"""The figures of tests/bench/science, from its runs: DistBelief's two (Dean 2012, figures 4 and 5)
and the staleness of gradients. A point is the median of the seeds, a bar or band goes from the least
to the largest; it is only there where every seed has one."""
import statistics
import subprocess
from collections import defaultdict

NAMES = {
    "sgd": "SGD, 1 worker",
    "downpour": "Downpour SGD, fixed rate",
    "adagrad": "Downpour, Adagrad",
    "warm": "Downpour, Adagrad, warm start",
    "ssp": "SSP (bound 4), Adagrad, warm start",
    "sync": "sync, momentum",
    "lbfgs": "Sandblaster L-BFGS, all 60,000 images",
}
COLOURS = {"sgd": "#555555", "downpour": "#d55e00", "adagrad": "#e69f00", "warm": "#0072b2",
           "ssp": "#56b4e9", "sync": "#009e73", "lbfgs": "#cc79a7"}
TARGETS = (0.90, 0.97)
LEAST = 80  # % that the first figure shows
VIRTUAL = ("seed:32 on MNIST, 3 epochs (L-BFGS: 30 steps); median and range of the seeds",
           "virtual time: 0.1 ms an image a worker, lognormal 10 %; 50 us and 10 Gbit/s at the "
           "server's link;",
           "server 10 us a message, 1 ns a value of a gradient. Core, workers and gradients are real")
WALL = ("MNIST, median and range of the seeds; wall time",)
PAGE = """set terminal svg size {size} font 'sans-serif,14' background '#ffffff'
set output '{out}'
set grid lc rgb '#dddddd'
set border lc rgb '#444444'
"""


class Runs:
    """A file of runs: points[mode, workers][seed] = [(seconds, accuracy)...], and the rest."""

    def __init__(self, path, alone):
        self.points, self.stale = defaultdict(dict), defaultdict(lambda: defaultdict(int))
        self.alone = alone
        for line in path.read_text().splitlines():
            kind, mode, workers, seed, *rest = line.split(",")
            key = mode, int(workers)
            if kind == "point":
                self.points[key].setdefault(int(seed), []).append((float(rest[0]), float(rest[-1])))
            elif kind == "staleness":
                self.stale[key][rest[0]] += int(rest[1])
        self.is_wall = not self.stale

    def of(self, mode, workers):
        """By seed; a mode that is another one where a worker is alone has that one's."""
        if workers == 1:
            mode = self.alone.get(mode, mode)
        return self.points.get((mode, workers), {})

    def workers(self):
        return sorted({w for _, w in self.points})


def reached(points, target):
    """When the accuracy first reaches the target, on a line between two looks; None: never."""
    before = None
    for seconds, accuracy in points:
        if accuracy >= target:
            if before is None:
                return seconds
            part = (target - before[1]) / (accuracy - before[1])
            return before[0] + part * (seconds - before[0])
        before = seconds, accuracy
    return None


def spread(values):
    return statistics.median(values), min(values), max(values)


def over_time(by_seed):
    """(seconds, median, least, largest accuracy) at the looks that all seeds had."""
    looks = defaultdict(list)
    for points in by_seed.values():
        for seconds, accuracy in points:
            looks[round(seconds, 3)].append(100 * accuracy)
    # a run's last point is at its own time: of several seeds the last ones meet at the latest
    last = [points[-1] for points in by_seed.values()]
    rows = [(t, *spread(a)) for t, a in sorted(looks.items()) if t > 0 and len(a) == len(by_seed)]
    end = max(t for t, _ in last)
    return [r for r in rows if r[0] < end] + [(end, *spread([100 * a for _, a in last]))]


def over_looks(by_seed):
    """The same where no two seeds were looked at at the same moments: the n-th look of each."""
    return [(statistics.median(t for t, _ in looks), *spread([100 * a for _, a in looks]))
            for looks in zip(*by_seed.values())]


def block(name, rows):
    return f"${name} << EOD\n" + "".join(" ".join(f"{v:g}" if isinstance(v, float) else str(v)
                                                  for v in r) + "\n" for r in rows) + "EOD\n"


def gnuplot(text):
    subprocess.run(["gnuplot"], input=text, text=True, check=True)


def titled(runs, title):
    """The title, and under it what the clock was."""
    below = "".join(f"\\n{{/*0.75 {line}}}" for line in (WALL if runs.is_wall else VIRTUAL))
    return f'title "{title}{below}"\n'


def accuracy_over_time(runs, out, workers):
    text = PAGE.format(out=out, size="1000,640")
    text += "set " + titled(runs, f"Test accuracy against time, {workers} workers")
    text += ("set logscale x\nset xlabel 'seconds'\nset ylabel 'test accuracy, %'\n"
             f"set yrange [{LEAST}:99]\nset xrange [0.1:*]\nset key bottom right\n")
    bands, lines = [], []
    style = "linespoints pt 7 ps 0.5" if runs.is_wall else "lines"
    for mode, name in NAMES.items():
        by_seed = runs.of(mode, 1 if mode == "sgd" else workers)
        if not by_seed:
            continue
        rows = over_looks(by_seed) if runs.is_wall else over_time(by_seed)
        if max(row[3] for row in rows) < LEAST:
            name += f" (below {LEAST} %)"
        text += block(mode, rows)
        bands.append(f"${mode} using 1:3:4 with filledcurves fs solid 0.18 noborder "
                     f"lc rgb '{COLOURS[mode]}' notitle")
        lines.append(f"${mode} using 1:2 with {style} lw 2.5 lc rgb '{COLOURS[mode]}' title '{name}'")
    gnuplot(text + "plot " + ", \\\n".join(bands + lines) + "\n")


def times(runs, mode, target):
    rows = []
    for workers in runs.workers():
        by_seed = runs.of(mode, workers)
        when = [reached(points, target) for points in by_seed.values()]
        if when and None not in when:
            rows.append((workers, *spread(when)))
    return rows


def time_by_workers(runs, out):
    text = PAGE.format(out=out, size="1000,760")
    text += "set multiplot layout 1,2 " + titled(runs, "Time to an accuracy against workers")
    text += ("set logscale xy\nset xtics (1,2,4,8,16)\nset xrange [0.85:19]\n"
             "set yrange [0.1:100]\n"
             "set xlabel 'workers'\nset ylabel 'seconds'\n"
             "set key at screen 0.5,0.02 center bottom maxrows 4 noenhanced\nset bmargin at screen 0.3\n"
             "set tmargin at screen 0.80\n")
    for i, target in enumerate(TARGETS):
        plots = []
        text += f"set title 'to {100 * target:g} % of the test images'\n"
        if i:
            text += "unset key\n"
        for mode, name in NAMES.items():
            rows = times(runs, mode, target)
            label = f"title '{name}'" if not i else "notitle"
            if rows:
                text += block(f"{mode}{i}", rows)
                at = f"${mode}{i} using 1:2"
            else:
                at = "1/0"
            colour = f"lc rgb '{COLOURS[mode]}'"
            plots.append(f"{at} with linespoints lw 2.5 pt 7 ps 0.7 {colour} {label}")
            if rows:
                plots.append(f"{at}:3:4 with yerrorbars lw 1.5 pt 7 ps 0.7 {colour} notitle")
        text += "plot " + ", \\\n".join(plots) + "\n"
    gnuplot(text + "unset multiplot\n")


def staleness(runs, out):
    """Shares of gradients by age, for the asynchronous modes."""
    modes = [m for m in ("downpour", "warm", "ssp") if m in {k for k, _ in runs.stale}]
    counts = [w for w in runs.workers() if w > 1]
    text = PAGE.format(out=out, size="1000,700")
    text += "set multiplot layout 2,2 " + titled(
        runs, "Staleness: versions between a gradient's weights and its arrival")
    text += ("set style data histogram\nset style histogram clustered gap 1\n"
             "set style fill solid 0.85 noborder\nset ylabel 'gradients, %'\n"
             "set yrange [0:100]\nunset key\n")
    for workers in counts[-4:]:
        if workers == counts[-1]:  # where the left is free
            text += "set key top left Left reverse samplen 2\n"
        ages = [a for a in runs.stale[modes[0], workers] if int(a.split("-")[0]) <= 32]
        rows = []
        for age in ages:
            row = [f'"{age}"']
            for mode in modes:
                bins = runs.stale[mode, workers]
                row.append(100 * bins[age] / max(1, sum(bins.values())))
            rows.append(row)
        text += block(f"w{workers}", rows) + f"set title '{workers} workers'\n"
        text += "plot " + ", \\\n".join(
            f"$w{workers} using {i + 2}:xtic(1) lc rgb '{COLOURS[m]}' title '{NAMES[m]}'"
            for i, m in enumerate(modes)) + "\n"
    gnuplot(text + "unset multiplot\n")


def table(runs):
    """For docs/modes.md: end accuracies and times, least to largest of the seeds."""
    workers = runs.workers()
    print("| mode |", " | ".join(f"{w}" for w in workers), "|")
    print("|---|" + "---|" * len(workers))
    for mode, name in NAMES.items():
        cells = []
        for w in workers:
            by_seed = runs.of(mode, w)
            if mode == "sgd" and w > 1 or not by_seed:
                cells.append("")
                continue
            end = spread([100 * p[-1][1] for p in by_seed.values()])
            when = [reached(p, TARGETS[1]) for p in by_seed.values()]
            took = "never" if None in when else f"{spread(when)[0]:.2f} s"
            cells.append(f"{end[1]:.2f} to {end[2]:.2f}; {took}")
        print(f"| {name} |", " | ".join(cells), "|")


def draw(path, to, alone):
    runs = Runs(path, alone)
    to.mkdir(parents=True, exist_ok=True)
    accuracy_over_time(runs, to / "accuracy.svg", runs.workers()[-1])
    time_by_workers(runs, to / "workers.svg")
    if not runs.is_wall:
        staleness(runs, to / "staleness.svg")
    table(runs)

// report.js - the page that cnn-ctl report writes. It compares the runs of the element "data".
// The colours of the curves. People who do not see red or green can tell them apart, too.
const palette = Array.from({length: 8}, (_, i) => "curve" + (i + 1));
const runs = JSON.parse($("data").textContent).map((o, i, all) => {
	/* a directory may be given twice, but a curve needs a name of its own */
	const same = all.slice(0, i).filter(before => before.name === o.name).length;
	const run = new Run(same ? `${o.name} (${same + 1})` : o.name);
	o.lines.forEach(line => run.take(line));
	return run;
});

// Returns the seconds since the first start of the run, without the times in which no server ran.
function elapsed(run, t) {
	const away = run.gaps.reduce((sum, [from, to]) => sum + Math.max(0, Math.min(t, to) - from), 0);
	return (t - run.first - away) / 1000;
}

// Adds a cell to a row. A long text of the class "whole" takes several lines.
function cell(row, tag, text, css) {
	const el = add(row, tag, null, css);
	(css.includes("whole") ? add(el, "div") : el).textContent = text;
	return el;
}

// Fills a table. Each column is [heading, CSS class].
function table(el, columns, rows) {
	const head = add(add(el, "thead"), "tr"), body = add(el, "tbody");
	for (const [text, css] of columns)
		cell(head, "th", text, css).scope = "col";
	for (const row of rows) {
		const tr = add(body, "tr");
		row.forEach((value, i) => {
			const td = cell(tr, "td", value, columns[i][1]);
			if (columns[i][1] && columns[i][0] === "name")
				fill(td, value);
		});
	}
}

const final = run => run.samples[run.samples.length - 1] || {};
const images = run => !run.hasImages ? "–" : run.heldBack ? number(run.heldBack) + " held-back images" : "test images";
// Why a rule ended the run early, unless the run failed.
const early = run => run.end && !FAILED[run.end.status] && run.end.stop_reason;
const states = run => !run.end ? "not ended" : early(run) ? `ended early: ${early(run)}` : run.end.status;

// Returns the results of epoch `e` without its loss, or only the loss if there are no others.
function results(e) {
	if (!e)
		return "–";
	const texts = [e.accuracy == null ? [] : percent(e.accuracy), metricTexts(e)].flat();
	return texts.join(" · ") || "loss " + lossText(e.test_loss);
}

function drawRuns() {
	const columns = [["run", "text whole"], ["end", "text"], ["epochs", ""], ["evaluated on", "text"], ["best", ""],
		["in epoch", ""], ["last", ""], ["loss", ""], ["time", ""], ["images/s", ""],
		["workers", ""], ["starts", ""], ["pushes", ""], ["duplicates", ""], ["rejected", ""], ["refused", ""]];
	table($("runs"), columns, runs.map(run => {
		const b = run.best, last = run.epochs[run.epochs.length - 1], s = final(run);
		const time = elapsed(run, run.last);
		return [run.name, states(run), number(run.epochs.length), images(run), results(b), b ? number(b.epoch) : "–",
			results(last), last ? lossText(last.test_loss) : "–", seconds(time),
			run.hasImages ? number(s.images / time) : "–", number(run.workers.length), number(run.starts.length), number(s.pushes),
			number(s.duplicates), number(s.rejected) + rejectedFor(s), number(s.refusals)];
	}));
	runs.forEach((run, i) => $("runs").tBodies[0].rows[i].cells[1].classList.toggle("wrap", !!early(run)));
	$("mixed").hidden = new Set(runs.map(run => run.heldBack > 0)).size < 2;
	$("model").textContent = [...new Set(runs.map(run => run.starts[0]?.model))].filter(model => model).join(" · ");
}

// Returns the ticks of an axis of epochs: whole numbers only.
const epochTicks = (low, high, pixels) => evenValues(low, high, pixels / 40).filter(Number.isInteger).map(v => ({v, label: number(v)}));
// Returns the ticks of an axis of seconds, with labels such as "1,500,000" or "0.25". Dygraphs moves a
// label at the end of the axis to the left; such a label must not touch the one before it.
function secondTicks(low, high, pixels) {
	const label = v => v.toLocaleString("en"), width = v => 6.3 * label(v).length, place = v => (v - low) / (high - low) * pixels;
	const values = evenValues(low, high, pixels / Math.max(36, width(Math.round(high)) + 4));
	return values.filter((v, i) => !i || place(v) + width(v) / 2 <= pixels || place(v) - place(values[i - 1]) >= 1.5 * width(v) + 4)
		.map(v => ({v, label: label(v)}));
}

// Lets the arrow keys choose a point of chart `g`. The legend shows the values, and screen readers get
// its text.
function exploreChart(g, el, legend) {
	let row = null;
	takeKeys(el, "chart", e => {
		const next = rowAfter(g, row, e.key);
		if (next === undefined)
			return;
		e.preventDefault();
		row = next;
		g.setSelection(row);
		const spoken = legend.cloneNode(true);
		spoken.querySelectorAll(".no-value").forEach(el => el.remove());
		said(spoken.textContent.replace(/[━╍]/g, ""));
	});
	el.onblur = () => {
		row = null;
		g.clearSelection();
	};
}

// Draws one curve for each run. `points` returns the points [x, y] of a run. An x is a number of
// `unit`: "epoch" or "second".
function compare(id, unit, points, options) {
	const rows = [], at = new Map(), isEpoch = unit === "epoch", box = $("chart-" + id), legend = $("legend-" + id);
	runs.forEach((run, i) => {
		for (const [x, y] of points(run)) {
			let row = at.get(x); /* runs with a point at the same x share a row */
			if (!row || row[i + 1] != null) {
				row = new Array(runs.length + 1).fill(null);
				row[0] = x;
				rows.push(row);
				at.set(x, row);
			}
			row[i + 1] = y;
		}
	});
	rows.sort((a, b) => a[0] - b[0]);
	if (!rows.length) {
		box.classList.add("empty");
		box.dataset.empty = "no values";
		box.setAttribute("aria-label", box.getAttribute("aria-label") + ": no values");
		return null;
	}
	/* an axis needs a range, also if all points have the same x */
	const first = rows[0][0], range = rows[rows.length - 1][0] > first ? null : [first - 0.5, first + 0.5];
	const series = {};
	runs.forEach((run, i) => series[run.name] = {strokePattern: i < palette.length ? null : [6, 3]});
	const g = new Dygraph(box, rows, Object.assign({
		labels: ["x", ...runs.map(run => run.name)], dateWindow: range, legend: "always", labelsDiv: legend,
		connectSeparatedPoints: true, strokeWidth: 2, axisLabelFontSize: 11, axisLineColor: "transparent",
		yRangePad: 6, xRangePad: 6, interactionModel: {}, resizable: "passive", series,
		legendFormatter: d => (d.x == null ? "" : isEpoch ? `epoch ${number(d.x)} ` : `${number(d.x)} s `) + d.series.map(s => {
			const dot = document.createElement("span"), name = document.createElement("span");
			dot.textContent = runs.findIndex(run => run.name === s.label) < palette.length ? "━ " : "╍ ";
			dot.style.color = s.color;
			name.textContent = s.label + (s.y == null ? "" : " " + s.yHTML);
			name.dir = "auto";
			name.style.whiteSpace = "normal";
			name.style.overflowWrap = "anywhere"; /* breaks a name that is longer than a line */
			const both = document.createElement("span");
			both.style.cssText = "display: inline-block; max-width: 100%; margin-left: 1em; white-space: nowrap";
			both.append(dot, name);
			/* the name remains in the legend, which must not change its size, but it is not spoken */
			both.className = d.x != null && s.y == null ? "no-value" : "";
			return both.outerHTML;
		}).join(" ")
	}, options, {axes: {y: {valueFormatter: v => number(v, 3)}, ...options.axes, x: {ticker: isEpoch ? epochTicks : secondTicks}}}));
	exploreChart(g, box, legend);
	g.paint = () => g.updateOptions({colors: runs.map((_, i) => color(palette[i % palette.length])), gridLineColor: color("line")});
	g.paint();
	return g;
}

function drawOptions() {
	const names = [...new Set(runs.flatMap(run => run.starts.flatMap(start => Object.keys(start.options || {}))))];
	/* the values of an option in the order of the starts, without repetitions in a row; a start whose
	 * line was lost has no options */
	const values = (run, name) => run.starts.filter(start => start.options).map(start => String(start.options[name] ?? "–"))
		.filter((v, i, all) => i === 0 || v !== all[i - 1]);
	const rows = names.filter(name => new Set(runs.flatMap(run => values(run, name))).size > 1)
		.map(name => ["--" + name, ...runs.map(run => values(run, name).join(" → ") || "–")]);
	const models = runs.map(run => run.starts.length ? run.starts[0].model : "–");
	if (new Set(models).size > 1)
		rows.unshift(["--model", ...models]);
	if (rows.length)
		table($("options"), [["option", "text"], ...runs.map(run => [run.name, "text whole"])], rows);
	else
		$("options").parentElement.textContent = runs.length > 1 ? "None." : "There is only one run.";
}

// The parts of a worker's time, in the order in which the lines of the history have them.
const PARTS = ["computes", "waits for weights", "sends", "waits for work", "copies"];

// Returns the sums of a worker that is in no sample, from the lines about it.
function brief(run, id) {
	const live = run.stays(id).reduce((sum, [from, to]) => sum + to - from, 0) / 1000;
	const done = run.changes.findLast(o => o.worker === id).images;
	return {time: live, live, images: done, stale: 0, n: 0, split: 0, parts: []};
}

// Adds up the samples of each worker. A sample covers the time since the previous sample, or since
// the worker has joined.
function workersOf(run) {
	const all = {}, names = run.names, joins = run.changes.filter(o => o.change === "joined");
	const at = {}; // when a worker has joined
	let joined = 0;
	run.samples.forEach((s, i) => {
		const before = i ? run.samples[i - 1].t : s.t - 1000;
		const whole = run.gaps.some(([, to]) => to > before && to <= s.t) ? 1 : (s.t - before) / 1000;
		for (; joined < joins.length && joins[joined].t <= s.t; joined++)
			at[joins[joined].worker] = joins[joined].t;
		for (const [id, state, rate, stale, , parts] of s.workers) {
			const w = all[id] = all[id] || {time: 0, live: 0, images: 0, stale: 0, n: 0, split: 0, parts: PARTS.map(() => 0)};
			const time = at[id] > before ? Math.min(whole, (s.t - at[id]) / 1000) : whole;
			w.time += time;
			w.live += state === "live" ? time : 0;
			w.images += rate * time;
			if (stale != null) {
				w.stale += stale;
				w.n++;
			}
			if (parts) {
				w.split += time;
				parts.forEach((part, i) => w.parts[i] += part * time);
			}
		}
	});
	return run.workers.map(id => [id, all[id] || brief(run, id)]).map(([id, w]) => [id, names[id] || "–", seconds(w.live), percent(w.live / w.time),
		run.hasImages ? number(w.images / w.live) : "–", w.n ? number(w.stale / w.n, 1) : "–",
		...PARTS.map((_, i) => w.split ? number(w.parts[i] / w.split) + " %" : "–")]);
}

// Returns a sentence about the time of the server's main thread. At each start the server counts
// from 0 again, so the function adds up the sums of all starts.
function serverTime(run) {
	const sums = {apply: 0, verify: 0, idle: 0, total: 0};
	let before = null;
	for (const {time} of run.samples) {
		if (!time)
			continue;
		const first = !before || time.total < before.total;
		for (const part in sums)
			sums[part] += time[part] - (first ? 0 : before[part]);
		before = time;
	}
	const share = part => number(100 * sums[part] / sums.total) + " %";
	return sums.total ? `The server's main thread: ${share("apply")} messages and updates, ${share("verify")} ` +
		`decoding and checksums, ${share("idle")} idle.` : "";
}

const canvases = [];
for (const run of runs) {
	const card = add($("each"), "section", null, "card");
	add(card, "h2", run.name + ": workers over time");
	const key = add(card, "p", null, "key quiet");
	const box = add(card, "div", null, "scroll tall");
	box.setAttribute("aria-label", "State of each worker of " + run.name + " over time; the table below has the sums");
	const canvas = add(box, "canvas"), note = add(card, "p", null, "quiet");
	note.dataset.help = "Point at the timeline, or focus it and use the arrow keys.";
	explore(box, canvas, note, () => run);
	canvases.push([canvas, run, key]);
	const scroll = add(card, "div", null, "scroll");
	scroll.tabIndex = 0;
	scroll.setAttribute("role", "region");
	scroll.setAttribute("aria-label", "Table of workers of " + run.name);
	table(add(scroll, "table"), [["#", ""], ["name", "text"], ["live", ""], ["of its time", ""], ["images/s while live", ""], ["staleness", ""],
		...PARTS.map(part => [part, ""])], workersOf(run));
	add(card, "p", serverTime(run), "quiet");
}
const timelines = () => canvases.forEach(([canvas, run, key]) => {
	const stalest = timeline(canvas, run);
	const texts = {live: "live" + (run.hasImages ? "; a stronger colour is faster" : ""), late: "suspect or stalled", away: "away or gone", out: "excluded",
		line: stalest == null ? "" : `staleness, from 0 to ${number(stalest, 1)} or more`,
		gap: "no server"};
	key.replaceChildren();
	for (const [name, text] of Object.entries(texts).filter(([, text]) => text)) {
		const both = add(key, "span");
		add(both, "span", null, "swatch " + name);
		both.append(" " + text);
		key.append(" ");
	}
	key.append(run.axis.cuts.length ? "(a long time without a server is drawn shorter)" : "");
});

drawRuns();
drawOptions();
const LOSS = {logscale: true, axes: {y: LOSS_AXIS}};
// The result that two of the charts draw: the accuracy if any of the runs has it, otherwise the
// result of the first run with epochs.
const measures = runs.filter(run => run.epochs.length).map(run => run.measure);
const measure = measures.includes("accuracy") ? "accuracy" : measures[0] || "accuracy";
const PERCENT = measure === "accuracy" ? 100 : 1;
const POINTS = {drawPoints: true, pointSize: 3};
const RESULT = PERCENT > 1 ? POINTS : {...POINTS, axes: {y: {valueFormatter: v => measureText(v), axisLabelFormatter: lossLabel, axisLabelWidth: 56}}};
const evaluated = run => run.epochs.filter(e => measured(e, measure) != null);
const title = measure === TEST_LOSS ? "Evaluation loss" : measure;
if (PERCENT === 1)
	for (const [id, by, spoken] of [["accuracy", "epoch", "epoch"], ["time", "time (s)", "seconds of the server"]]) {
		$("title-" + id).textContent = `${title} by ${by}`;
		$("chart-" + id).setAttribute("aria-label", `${title} by ${spoken}`);
	}
const curves = [
	compare("accuracy", "epoch", run => evaluated(run).map(e => [e.epoch, PERCENT * measured(e, measure)]), RESULT),
	compare("time", "second", run => evaluated(run).map(e => [elapsed(run, e.t), PERCENT * measured(e, measure)]), RESULT),
	compare("loss", "second", run => run.samples.filter(s => s.loss != null).map(s => [elapsed(run, s.t), s.loss]), LOSS),
	compare("evaluation", "epoch", run => run.epochs.filter(e => e.test_loss != null).map(e => [e.epoch, e.test_loss]), {drawPoints: true, pointSize: 3, ...LOSS}),
].filter(g => g);
timelines();

function repaint(name) {
	theme(name);
	curves.forEach(g => g.paint());
	timelines();
}

$("theme").onclick = () => repaint(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
matchMedia("(prefers-color-scheme: dark)").onchange = e => repaint(e.matches ? "dark" : "light");
addEventListener("resize", timelines);

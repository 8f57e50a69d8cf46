// charts.js - draws a history (docs/monitoring.md) as curves and as a timeline of workers.
"use strict";

const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const $ = id => document.getElementById(id);
// The number formats, indexed by the number of digits after the point. The page stores them because
// making a format takes 20 times as long as using it.
const formats = [];
const format = digits => formats[digits] ||= new Intl.NumberFormat("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const number = (x, digits = 0) => x == null || !isFinite(x) ? "–" : format(digits).format(x);
const percent = x => x == null || !isFinite(x) ? "–" : number(100 * x, 2) + " %";
// Returns why pushes were rejected, such as ": 7 stale", from the counters of a status or from a sample.
const rejectedFor = o => Object.entries(o.rejected_for || {}).map(([reason, n], i) => `${i ? "," : ":"} ${number(n)} ${reason}`).join("");
const seconds = s => s == null ? "" : s < 90 ? Math.ceil(s) + " s" :
	s < 5400 ? Math.round(s / 60) + " min" : s < 172800 ? number(s / 3600, 1) + " h" : number(s / 86400, 1) + " d";

const silence = ms => ms == null ? "–" : ms < 1000 ? number(ms) + " ms" : number(ms / 1000, 1) + " s";

// Returns a loss as text. A loss may be as small as 1e-12, and that of a run that diverges as large as 1e30.
function lossText(x) {
	const size = Math.abs(x), isPlain = size === 0 || size >= 0.001 && size < 1e5;
	return isFinite(size) && !isPlain ? x.toExponential(1) : number(x, 4);
}
// Returns the label of a loss on the axis of chart `g`, as short as possible, so that it stays on one
// line, but with as many digits as the range of the axis needs.
function lossLabel(x, granularity, options, g) {
	const [low, high] = g.yAxisRange(), size = Math.max(Math.abs(low), Math.abs(high));
	const digits = Math.ceil(Math.log10(size / (high - low))) + 2;
	const short = Number(x.toPrecision(Math.min(7, Math.max(3, digits || 3)))), away = Math.abs(short);
	return away === 0 || away >= 0.01 && away < 1e5 ? String(short) : short.toExponential();
}

// The mantissas of the ticks of a logarithmic axis, from the closest to the farthest ones.
const MANTISSAS = [[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];
// Returns the values of these mantissas from `low` to `high`.
function mantissaValues(mantissas, low, high) {
	const values = [];
	for (let i = Math.floor(Math.log10(low)); 10 ** i <= high; i++)
		values.push(...mantissas.map(m => Number((m * 10 ** i).toPrecision(3))));
	return values.filter(v => v >= low && v <= high);
}
// Returns the multiples from `low` to `high` of 1, 2 or 5 times a power of ten, at most `room` of them.
function evenValues(low, high, room) {
	const least = (high - low) / room, power = 10 ** Math.floor(Math.log10(least));
	const step = power * [1, 2, 5, 10].find(m => m * power >= least), values = [];
	for (let i = Math.ceil(low / step); i * step <= high && values.length < room + 1; i++)
		values.push(Number((i * step).toPrecision(12)));
	return values;
}
// Returns the ticks of a logarithmic axis. For a small range, they are multiples of one step; for a
// larger range, round numbers in each power of ten; and for a very large range, powers of ten.
function lossTicks(low, high, pixels, options, ...more) {
	const decades = Math.log10(high / low), apart = options("pixelsPerLabel");
	if (!(decades > 0 && isFinite(decades)))
		return Dygraph.numericTicks(low, high, pixels, options, ...more);
	const fits = list => list.every((v, i) => !i || Math.log10(v / list[i - 1]) / decades * pixels >= 0.6 * apart);
	let values = decades < 0.3 ? evenValues(low, high, pixels / apart) :
		MANTISSAS.map(m => mantissaValues(m, low, high)).find(fits);
	if (!values) { /* there is no room for all powers of ten */
		const step = Math.ceil(decades * apart / pixels);
		values = [];
		for (let i = Math.ceil(Math.log10(low) / step) * step; i <= Math.log10(high); i += step)
			values.push(10 ** i);
	}
	return values.map(v => ({v, label: options("axisLabelFormatter")(v, 0, options, more[0])}));
}
const LOSS_AXIS = {valueFormatter: lossText, axisLabelFormatter: lossLabel, axisLabelWidth: 56, ticker: lossTicks};

// A run measures its accuracy, or other metrics, or only the test loss. The next three functions
// take the name of such a result, which is "accuracy", the name of a metric, or TEST_LOSS. `o` is
// the line of an epoch, or a status.
const TEST_LOSS = "test loss";
const measured = (o, name) => name === "accuracy" ? o.accuracy : name === TEST_LOSS ? o.test_loss : o.metrics?.[name];
const measureText = (x, name) => x == null ? "–" : name === "accuracy" ? percent(x) : String(Number(x.toPrecision(5)));
// Returns all metrics but `except` as a list of texts, such as ["mae 0.25"].
const metricTexts = (o, except) => Object.entries(o.metrics || {}).filter(([name]) => name !== except)
	.map(([name, x]) => `${name} ${measureText(x, name)}`);

// The reason why a run failed, for each word that reports a bad end.
const FAILED = {
	diverged: "Training diverged: gradients not finite, or of another size.",
	aborted: "The server gave up the run. Its log says why.",
};

// Return the least and the greatest number of a list. Math.min and Math.max take a limited number
// of arguments, and a list may have more.
const least = (list, start) => list.reduce((a, b) => b < a ? b : a, start);
const greatest = (list, start) => list.reduce((a, b) => b > a ? b : a, start);

// Returns the number below which 95 % of a list of numbers are, or 0 if the list is empty. A scale
// that ends at this number does not depend on a few outliers.
const usual = list => Float64Array.from(list).sort()[Math.floor(0.95 * (list.length - 1))] || 0;

// This class has the data of a history. `room` limits the samples that it keeps; a sample counts
// SAMPLE plus its number of workers. When the samples exceed the limit, the class drops every other
// sample, and from then on it keeps half as many of the new samples. A history with a limit also
// keeps at most EPOCHS epochs and CHANGES lines about workers.
const SAMPLE = 100, EPOCHS = 1000, CHANGES = 4000;
// The time between two neighbouring samples (a step) counts as a time without a server if it is
// longer than SILENT milliseconds, and longer than four times the median of the steps around it,
// AROUND on each side.
const SILENT = 6000, AROUND = 4;
// Returns whether a line of a history can be drawn. A damaged file may have other lines.
const isWhole = o => Number.isFinite(o.t) && (o.kind !== "sample" || Array.isArray(o.workers) && o.workers.every(Array.isArray));
class Run {
	constructor(name, room = Infinity) {
		this.name = name;
		this.room = room;
		this.samples = [];
		this.used = 0;
		// minimum time in ms between two kept samples; the newest sample is always kept
		this.distance = 0;
		this.epochs = [];
		this.step = 0; // minimum number of epochs between two kept epochs; the newest is always kept
		this.best = null; // the epoch with the best accuracy or, without an accuracy, the lowest test loss
		this.starts = [];
		this.names = {};
		this.changes = []; // the lines about workers
		this.gaps = []; // [from, to]: times without a server
		this.seen = 0; // time of the newest sample since the newest start of the server
		this.steps = []; // [from, to]: the last steps between two samples of one start
		this.last = 0;
		this.away = 0; // how long the page has had no server since this.last, in ms
		this.end = null;
	}
	// The times without a server, including the present one if the page has no server now.
	get absences() {
		return this.away ? [...this.gaps, [this.last, this.now]] : this.gaps;
	}
	get now() {
		return this.last + this.away;
	}
	// The time of the first start or, if a damaged history has no start, of another early line.
	get first() {
		return (this.starts[0] || this.samples[0] || this.epochs[0] || this.changes[0] || {t: this.last}).t;
	}
	take(o) {
		if (!isWhole(o))
			return;
		if (o.kind === "start") {
			if (o.resumed && this.last && o.t > this.last)
				this.gaps.push([this.last, o.t]);
			this.starts.push(o);
			this.seen = 0;
			this.end = null;
		} else if (o.kind === "sample") {
			this.takeSample(o);
		} else if (o.kind === "epoch") {
			this.takeEpoch(o);
		} else if (o.kind === "worker") {
			this.takeChange(o);
		} else if (o.kind === "end") {
			this.end = o;
		}
		this.last = Math.max(this.last, o.t);
	}
	isBest(o) {
		const b = this.best;
		if (o.accuracy != null)
			return !(b && b.accuracy >= o.accuracy);
		return o.test_loss != null && !(b && (b.accuracy != null || b.test_loss <= o.test_loss));
	}
	// The name of the result that the charts draw. Before the first evaluation, this name
	// follows from the options of the run.
	get measure() {
		const e = this.epochs.findLast(e => e.accuracy != null || e.test_loss != null);
		if (e)
			return e.accuracy != null ? "accuracy" : Object.keys(e.metrics || {})[0] || TEST_LOSS;
		const [name] = (this.options.metrics || "accuracy").split(" ");
		return name === "none" ? TEST_LOSS : name;
	}
	// The title of `measure`.
	get title() {
		return {accuracy: "Accuracy", [TEST_LOSS]: this.heldBack ? "Validation loss" : "Test loss"}[this.measure] || this.measure;
	}
	takeEpoch(o) {
		const e = this.epochs;
		if (this.isBest(o))
			this.best = o;
		if (e.length > 1 && e[e.length - 1].epoch - e[e.length - 2].epoch < this.step)
			e.pop();
		e.push(o);
		if (this.room === Infinity || e.length <= EPOCHS)
			return;
		this.epochs = e.filter((_, i) => i % 2 === 0);
		this.step = 0.9 * (o.epoch - e[0].epoch) / this.epochs.length;
	}
	takeChange(o) {
		this.names[o.worker] = o.name || o.host || this.names[o.worker];
		this.changes.push(o);
		if (this.room < Infinity && this.changes.length > CHANGES)
			this.changes.splice(0, CHANGES / 2);
	}
	// Returns the numbers of all workers in ascending order. A worker that left within a second may be
	// in no sample.
	get workers() {
		const found = new Set(this.changes.map(o => o.worker));
		for (const s of this.samples)
			for (const w of s.workers)
				found.add(w[0]);
		return [...found].sort((a, b) => a - b);
	}
	// Returns the times [from, to] in which a worker was part of the run, from its changes.
	stays(worker) {
		const stays = [];
		let from = null;
		for (const o of this.changes.filter(o => o.worker === worker)) {
			if (o.change === "gone" && from != null)
				stays.push([from, o.t]);
			from = o.change === "gone" ? null : from ?? o.t;
		}
		return from == null ? stays : [...stays, [from, this.last]];
	}
	// Finds the times in which a server hung. A server writes no line about such a time. The
	// distance of the samples alone does not show such a time, because the history of a long
	// run has fewer samples.
	takeSilence(o) {
		if (this.seen)
			this.steps.push([this.seen, o.t]);
		this.seen = o.t;
		const all = this.steps = this.steps.slice(-2 * AROUND - 1);
		for (let i = Math.max(0, all.length - AROUND - 1); i < all.length; i++) {
			const around = all.slice(Math.max(0, i - AROUND), i + AROUND + 1).map(([from, to]) => to - from).sort((a, b) => a - b);
			const time = all[i][1] - all[i][0], silent = time > SILENT && time > 4 * around[around.length >> 1];
			this.gaps = this.gaps.filter(gap => gap !== all[i]);
			if (silent)
				this.gaps = [...this.gaps, all[i]].sort((a, b) => a[0] - b[0]);
		}
	}
	takeSample(o) {
		const s = this.samples, cost = o => SAMPLE + o.workers.length;
		this.takeSilence(o);
		if (s.length > 1 && s[s.length - 1].t - s[s.length - 2].t < this.distance)
			this.used -= cost(s.pop());
		s.push(o);
		this.used += cost(o);
		if (this.used <= this.room || s.length < 4)
			return;
		this.samples = s.filter((_, i) => i % 2 === 0);
		this.used = this.samples.reduce((sum, o) => sum + cost(o), 0);
		const away = this.gaps.reduce((sum, [from, to]) => sum + Math.max(0, to - Math.max(from, s[0].t)), 0);
		this.distance = 0.9 * (o.t - s[0].t - away) / this.samples.length;
	}
	// The options of the first start that has them. A start whose line was lost has none.
	get options() {
		return this.starts.find(o => o.options)?.options || {};
	}
	// A run of vector:N has no images.
	get hasImages() {
		return !this.starts.some(o => (o.model || "").startsWith("vector:"));
	}
	// The number of training images that the run holds back and evaluates, or 0 if the run
	// evaluates the test images. A page knows it from the status before its history has arrived.
	get heldBack() {
		return this.options.validate || this.toldHeldBack || 0;
	}
	takeText(text) {
		for (const line of text.split("\n"))
			if (line)
				this.take(JSON.parse(line));
	}
	// Returns the axis of time, on which a long time without a server takes little space.
	get axis() {
		const list = this.absences, active = this.now - this.first - list.reduce((sum, [from, to]) => sum + to - from, 0);
		return new Axis(list.filter(([from, to]) => to - from > Math.max(LONG_MS, LONG * active)), SHOWN * active);
	}
	// Returns rows [t, value of each series] for a chart. `series` is a list of pairs: a list of
	// history lines, and a function that returns the value of such a line. The curves break at a gap.
	rows(series, at = t => new Date(t)) {
		const rows = [];
		series.forEach(([list, value], i) => {
			for (const o of list)
				if (value(o) != null) {
					const row = new Array(series.length + 1).fill(null);
					row[0] = o.t;
					row[i + 1] = value(o);
					rows.push(row);
				}
		});
		for (const [from, to] of this.gaps)
			rows.push([(from + to) / 2, ...series.map(([list]) => list === this.samples ? NaN : null)]);
		rows.sort((a, b) => a[0] - b[0]);
		for (const row of rows)
			row[0] = at(row[0]);
		return rows;
	}
}

// A time without a server is long if it lasts longer than LONG_MS, and longer than the fraction
// LONG of the time with a server. On the axis, a long time takes as much space as the fraction
// SHOWN of the time with a server.
const LONG_MS = 30000, LONG = 0.25, SHOWN = 0.08;
class Axis {
	constructor(cuts, shown) {
		this.cuts = cuts;
		this.shown = Math.max(1000, shown);
	}
	// Returns the place of time `t` on the axis, in milliseconds.
	place(t) {
		let x = t;
		for (const [from, to] of this.cuts)
			if (t > from)
				x -= (Math.min(t, to) - from) * (1 - this.shown / (to - from));
		return x;
	}
	time(x) {
		let t = x;
		for (const [from, to] of this.cuts) {
			const into = t - from;
			if (into > 0)
				t = into < this.shown ? from + into * (to - from) / this.shown : t + to - from - this.shown;
		}
		return t;
	}
	// Returns the ticks of an axis from place `a` to place `b`, which is `pixels` wide. The labels do
	// not overlap, and the last one ends before the end of the axis. If there is room for only one
	// multiple of a step, the ticks are the two ends instead.
	ticks(a, b, pixels) {
		const from = this.time(a), to = this.time(b), label = labelWidth(to - from), apart = (label + 8) * (b - a) / pixels;
		const step = STEPS.find(ms => ms >= 1.3 * apart) || STEPS[STEPS.length - 1], end = b - label / 2 * (b - a) / pixels;
		const zone = new Date(from).getTimezoneOffset() * 60000, ticks = [];
		const edges = [from, ...this.cuts.flat().filter(t => t > from && t < to), to];
		for (let i = 0; i < edges.length; i += 2) {
			const inside = [];
			for (let t = Math.ceil((edges[i] - zone) / step) * step + zone; t <= edges[i + 1] && this.place(t) <= end; t += step)
				inside.push(t);
			for (const t of inside.length ? inside : [edges[i]]) {
				const v = this.place(t);
				if (v <= end && (!ticks.length || v - ticks[ticks.length - 1].v >= apart))
					ticks.push({v, label: when(t, to - from, step)});
			}
		}
		return ticks.length > 1 ? ticks : [a, end].map(v => ({v, label: when(this.time(v), to - from, isDated(to - from) ? 60000 : 1000)}));
	}
}
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map(s => 1000 * s);

// Returns whether a label of a time needs the day, because the times are from a range of about a day.
const isDated = range => range > 8e7;
// Returns the greatest width in pixels of the label of a tick.
const labelWidth = range => isDated(range) ? 95 : 50;
// Returns a time of the clock, with the day if the range of times needs it.
function when(t, range = 0, step = 1000) {
	const d = new Date(t), clock = d.toLocaleTimeString("en-GB", step < 60000 ? {} : {hour: "2-digit", minute: "2-digit"});
	return isDated(range) ? `${d.getDate()} ${d.toLocaleDateString("en-GB", {month: "short"})} ${clock}` : clock;
}

// Draws a time without a server. If the axis shows this time shortened, the function writes its
// duration into it, unless there is no room.
function gap(c, x, [from, to], axis, top, height) {
	const a = x(from), b = x(to);
	c.fillStyle = color("gap");
	c.fillRect(a, top, Math.max(3, b - a), height);
	c.fillStyle = color("orange");
	c.fillRect(b, top, 1.5, height);
	if (!axis.cuts.some(cut => cut[0] === from))
		return;
	c.save();
	c.strokeStyle = color("orange");
	c.setLineDash([3, 3]);
	c.beginPath();
	c.moveTo(a, top);
	c.lineTo(a, top + height);
	c.stroke();
	c.fillStyle = color("warn");
	c.font = "10px system-ui, sans-serif";
	c.textAlign = "center";
	c.textBaseline = "top";
	c.translate((a + b) / 2, top + 2);
	const text = seconds((to - from) / 1000), {width} = c.measureText(text), upwards = width > b - a;
	if (upwards) {
		c.rotate(-Math.PI / 2);
		c.textAlign = "right";
		c.textBaseline = "middle";
	}
	if (!upwards || width + 4 <= height && b - a >= 10)
		c.fillText(text, 0, 0);
	c.restore();
}

// Returns the rows of chart `g` in which a visible curve has a point.
function filledRows(g) {
	const curves = g.visibility().map((visible, i) => visible ? i + 1 : 0).filter(i => i), log = g.getOption("logscale");
	const draws = v => Number.isFinite(v) && !(log && v <= 0);
	return Array.from({length: g.numRows()}, (_, row) => row).filter(row => curves.some(i => draws(g.getValue(row, i))));
}

// Returns the row with points that is closest to place `x`. If several rows are, `row` is preferred.
function rowAt(g, x, row = -1) {
	const away = i => Math.abs(g.getValue(i, 0) - x), rows = filledRows(g);
	return rows.reduce((best, i) => away(i) < away(best) || i === row && away(i) === away(best) ? i : best, rows[0]);
}

// Returns the row with points to which a key leads from `row`, or undefined if the key has no
// meaning. Without a row, the arrow keys begin at the last one.
function rowAfter(g, row, key) {
	const rows = filledRows(g), last = rows.length - 1, now = row == null ? last + 1 : rows.findIndex(i => i >= row);
	const at = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last}[key];
	return at === undefined ? at : rows[Math.max(0, Math.min(last, at))];
}

// Returns the line of a run at time `t` as a text such as "13:05:12 · epoch 3", or with the day if the
// run takes more than one.
function momentText(run, t) {
	const line = [...run.epochs, ...run.samples].find(o => Math.abs(o.t - t) < 1);
	return when(t, run.now - run.first) + (line?.epoch && run.hasImages ? ` · epoch ${line.epoch}` : "");
}

// Returns Dygraphs' ticks of an axis of time, or null if the axis has cuts or has room for only one tick.
function usualTicks(axis, a, b, pixels, ...more) {
	const ticks = axis.cuts.length ? [] : Dygraph.dateTicker(a, b, pixels, ...more).filter(({v}) => v >= a && v <= b);
	return ticks.length > 1 ? ticks : null;
}

// Gives an element to the keyboard, as a chart of this kind. Screen readers pass the keys to an
// element of role "application" and read its name and description; the labels of its axes are not
// meant for them.
function takeKeys(el, kind, onkeydown) {
	el.tabIndex = 0;
	el.setAttribute("role", "application");
	el.setAttribute("aria-roledescription", kind);
	for (const child of el.children)
		child.ariaHidden = "true";
	el.onkeydown = onkeydown;
}

function chart(id, names, colors, run, options) {
	const el = $("chart-" + id), legend = $("legend-" + id);
	// The rows of the chart that the arrow keys and the pointer have chosen, as {row, t} with the time
	// of the row, or null. The legend shows the values of one of these rows.
	let keyed = null, pointed = null;
	// The axis that gave the rows of the chart their places. Each new sample of a run changes the axis
	// of the run, but the rows have their old places until they are drawn again.
	let axis = new Axis([], 0);
	// Shows what is chosen. Each drawing of the chart hides it, and may give the row another number,
	// because a run drops samples.
	const show = g => {
		const chosen = pointed || keyed;
		if (!chosen) {
			g.clearSelection();
			return;
		}
		chosen.row = rowAt(g, axis.place(chosen.t), chosen.row);
		if (chosen.row == null)
			g.clearSelection();
		else
			g.setSelection(chosen.row);
	};
	const choice = (g, row) => ({row, t: axis.time(g.getValue(row, 0))});
	// there is no value yet, but a logarithmic axis needs a range
	const g = new Dygraph(el, [[new Date(0), ...names.map(() => null)]], Object.assign({
		labels: ["t", ...names], legend: "always", labelsDiv: legend, connectSeparatedPoints: true,
		strokeWidth: 2, axisLabelFontSize: 11, gridLineWidth: 1, axisLineColor: "transparent",
		highlightCircleSize: 4, hideOverlayOnMouseOut: false, includeZero: false, valueRange: [0.1, 1], yRangePad: 6, xRangePad: 6, interactionModel: {}, resizable: "passive",
		legendFormatter: d => (d.x == null ? "" : momentText(run(), axis.time(+d.x)) + " &nbsp; ") + d.series.filter(s => s.isVisible && (d.x == null || s.yHTML)).map(s =>
			`<span style="color:${s.color}">●</span> ${s.labelHTML} ` +
			(s.yHTML ? `<b>${s.yHTML}</b>` : "")).join(" &nbsp; "),
		underlayCallback: (c, area, g) => marks(c, area, g, run(), axis),
		drawCallback: show,
		highlightCallback: (e, x) => {
			const row = rowAt(g, x);
			pointed = row == null ? null : choice(g, row);
			show(g);
		},
		unhighlightCallback: () => {
			pointed = null;
			show(g);
		}
	}, options, {axes: {...options.axes, x: {ticker: (a, b, pixels, ...more) =>
		usualTicks(axis, a, b, pixels, ...more) || axis.ticks(+a, +b, pixels)}}}));
	takeKeys(el, "chart", e => {
		const row = el.classList.contains("empty") ? undefined : rowAfter(g, keyed?.row, e.key);
		if (row === undefined)
			return;
		e.preventDefault();
		pointed = null;
		keyed = choice(g, row);
		show(g);
		said(legend.textContent.replace(/ ·|\s*●/, ":").replaceAll("●", ""));
	});
	el.onblur = () => {
		keyed = null;
		show(g);
	};
	g.paint = () => g.updateOptions({colors: colors.map(color), gridLineColor: color("line")});
	// Draws new rows, whose places are those of the axis `on`.
	g.draw = (rows, on, options) => {
		axis = on;
		const [a, b] = options.dateWindow, usual = usualTicks(on, a, b, g.getArea().w, name => g.getOptionForAxis(name, "x"), g);
		g.updateOptions({file: rows, ...options, axes: {x: {axisLabelWidth: usual ? 60 : labelWidth(on.time(+b) - on.time(+a))}}});
	};
	return g;
}

// Gives a text to screen readers. They read only changes of an element that they know, so the element
// is part of the page from its beginning.
function said(text) {
	$("said").textContent = text;
}

// Marks the times without a server and the checkpoints, behind the curves.
function marks(c, area, g, run, axis) {
	if (!run)
		return;
	const x = t => g.toDomXCoord(axis.place(t));
	for (const absence of run.absences)
		gap(c, x, absence, axis, area.y, area.h);
	c.fillStyle = color("green");
	let last = -9, generation = null;
	for (const s of run.samples) {
		const at = x(s.t);
		if (s.generation != null && s.generation !== generation && at - last >= 5) {
			c.fillRect(at, area.y + area.h - 5, 1.5, 5);
			last = at;
		}
		generation = s.generation;
	}
}

const STATE = {live: "blue", suspect: "amber", stalled: "amber", joining: "blue", away: "grey",
	excluded: "ink", quarantined: "ink", dead: "grey"};
// Which quarters of a row's height a state paints. The states differ also for people who do not see
// these colours.
const SHAPE = {blue: [0, 1, 2, 3], amber: [1, 2], grey: [2], ink: [0, 3]}, QUARTERS = 4;
// The opacity of a live worker without progress: its contrast with the background is still 3.
const SLOW = 0.71;

// This class draws the cells of the timeline into a small picture in which each row is QUARTERS
// pixels high. The picture is then enlarged, because drawing 50,000 rectangles would take 0.1 s.
class Cells {
	constructor(c, width, rows) {
		this.c = c;
		this.picture = rows ? new ImageData(width, rows * QUARTERS) : null;
		this.pixels = rows ? new Uint32Array(this.picture.data.buffer) : null;
		this.shade = {};
		for (const name of new Set(Object.values(STATE))) {
			c.fillStyle = color(name);
			const [r, g, b] = c.fillStyle.match(/[0-9a-f]{2}/g).map(text => parseInt(text, 16));
			this.shade[name] = b << 16 | g << 8 | r;
		}
	}
	fill(row, from, to, name, alpha) {
		const value = (Math.round(255 * alpha) << 24 | this.shade[name]) >>> 0, width = this.picture.width;
		const [a, b] = [Math.max(0, from), Math.min(width, Math.max(from + 1, to))];
		for (let quarter = 0; quarter < QUARTERS; quarter++) {
			const line = (row * QUARTERS + quarter) * width;
			this.pixels.fill(SHAPE[name].includes(quarter) ? value : 0, line + a, line + b);
		}
	}
	draw(left, top, height, space) {
		if (!this.picture)
			return;
		const {width, height: lines} = this.picture, rows = lines / QUARTERS, small = document.createElement("canvas");
		small.width = width;
		small.height = lines;
		small.getContext("2d").putImageData(this.picture, 0, 0);
		this.c.imageSmoothingEnabled = false;
		for (let i = 0; i < rows && space; i++)
			this.c.drawImage(small, 0, i * QUARTERS, width, QUARTERS, left, top + i * height, width, height - space);
		if (!space)
			this.c.drawImage(small, left, top, width, rows * height);
	}
}

const MANY = 60; // up to this number of workers, each row of the timeline has a line of staleness

// Matches a text that begins with the name of a host and its domain.
const HOST = /^[^.]*[^.\d][^.]*\./;
// Returns the number at the end of a text, such as "-3" or ":4711", or "".
const endNumber = text => (text.match(/[-:]\d+$/) || [""])[0];
// Returns the characters of a text as readers see them. A letter with its accents is one of them.
const segmenter = globalThis.Intl?.Segmenter && new Intl.Segmenter("en");
const letters = text => segmenter && /[^ -~]/.test(text) ? [...segmenter.segment(text)].map(part => part.segment) : [...text];
// Matches a text with letters that are written from right to left.
const LEFTWARDS = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
// Returns a name for use inside another text: the direction of its letters does not affect this text.
const isolated = name => LEFTWARDS.test(name) ? `\u2068${name}\u2069` : name;

// Returns `name` with "…" in place of its middle, or of the domain of a host, so that fits()
// returns true for the result. The names of many workers often differ only at their end.
function shortened(name, fits) {
	if (!fits(name) && HOST.test(name))
		name = name.slice(0, name.indexOf(".")) + "…" + endNumber(name);
	if (fits(name))
		return name;
	const all = letters(name), part = (from, to) => all.slice(from, to).join("");
	let text = name;
	for (let n = all.length - 1; n > 1 && !fits(text); n--)
		text = (part(0, Math.ceil(n / 2)) + "…" + part(all.length - Math.floor(n / 2))).replace("……", "…");
	return text;
}

// Fills a cell of a table with a text. If the cell has no room for the text, page.css cuts its middle.
// Of the name of a host, it first cuts the domain, and then the letters before the host's number. A
// text with letters that are written from right to left stays whole, and page.css cuts its end: the
// browser would arrange the parts of such a text in a wrong order.
const END = 9, WIDE_END = 4; // minimum number of letters at the end of a long text that are not cut; WIDE_END: not ASCII
function fill(td, text) {
	const host = HOST.test(text), number = endNumber(text).length, all = letters(text);
	const end = host ? number : /[^ -~]/.test(text) ? number + WIDE_END :
		Math.max(END, number + 5); // number + 5 keeps a host's number, too, as in "er-17:4711"
	if (!host && all.length <= end || LEFTWARDS.test(text)) {
		td.textContent = text;
		return;
	}
	const box = document.createElement("span"), last = text.length - (end && all.slice(-end).join("").length);
	box.className = "cut";
	const start = host ? text.match(/^[^.]*?(?=\d*\.)/)[0].length : last, dot = host ? text.indexOf(".") : last;
	add(box, "span", text.slice(0, start));
	box.append(text.slice(start, dot));
	if (host)
		add(box, "span", text.slice(dot, last), "domain");
	box.append(text.slice(last));
	td.replaceChildren(box);
}

// Appends an element with a text and a CSS class to `parent`, and returns the element.
function add(parent, tag, text, css) {
	const el = document.createElement(tag);
	if (text != null)
		el.textContent = text;
	if (css)
		el.className = css;
	parent.append(el);
	return el;
}

// The timeline has a row for each worker and a cell for each sample. A cell is at least CELL pixels
// wide: the timeline omits a sample that is less than CELL pixels after the last drawn sample.
const CELL = 2;
// Draws the timeline. Returns the staleness at the upper edge of a row, or null if there are too
// many workers for lines of staleness. A higher staleness is drawn at this edge, too.
function timeline(canvas, run) {
	const samples = run.samples, ids = run.workers;
	const many = ids.length > MANY; /* if true, the rows are thin and have no lines of staleness */
	const row = many ? 4 : ids.length > 24 ? 12 : 22, space = many ? 0 : 2, top = 4;
	const width = Math.max(200, canvas.parentElement.clientWidth - 2), left = width < 480 ? 84 : 120, height = ids.length * row + top + 20;
	const ratio = window.devicePixelRatio || 1;
	canvas.width = width * ratio;
	canvas.height = height * ratio;
	canvas.style.width = width + "px";
	canvas.style.height = height + "px";
	const c = canvas.getContext("2d");
	c.scale(ratio, ratio);
	c.font = "11px system-ui, sans-serif";
	if (!samples.length)
		return;
	const from = Math.min(samples[0].t - 1000, run.starts[0]?.t ?? Infinity), to = Math.max(run.now, from + 2000), axis = run.axis;
	const begin = axis.place(from), span = axis.place(to) - begin;
	const x = t => left + (axis.place(t) - begin) / span * (width - left - 6);
	canvas.places = {ids, left, top, row, x, time: px => axis.time(begin + (px - left) / (width - left - 6) * span)};
	const index = new Map(ids.map((id, i) => [id, i])), y = id => top + index.get(id) * row;
	const rates = [], stales = [];
	for (const s of samples)
		for (const w of s.workers) {
			if (w[2] > 0)
				rates.push(w[2]);
			if (w[3] != null)
				stales.push(w[3]);
		}
	const fastest = Math.max(1, usual(rates)), stalest = Math.max(4, usual(stales));
	const cells = new Cells(c, width - left - 6, ids.length);
	let before = samples[0].t - 1000, drawn = left, next = 0;
	const seen = new Set();
	const line = new Map(ids.map(id => [id, []])); // the points of each line of staleness; null: the line breaks
	let continued = new Set(); // the workers that were live in the last drawn sample
	samples.forEach((s, i) => {
		const gap = next < run.gaps.length && run.gaps[next][0] < s.t;
		if (!gap && i < samples.length - 1 && x(s.t) - drawn < CELL)
			return;
		let begin = before;
		for (; next < run.gaps.length && run.gaps[next][0] < s.t; next++)
			begin = Math.max(begin, run.gaps[next][1]);
		const a = Math.floor(x(begin)) - left, b = Math.floor(x(s.t)) - left;
		const live = new Set();
		// a worker that is dead, or has left, is in no sample
		for (const id of seen)
			cells.fill(index.get(id), a, b, "grey", 1);
		for (const [id, state, rate, stale, silent] of s.workers) {
			seen.add(id);
			const late = state === "live" && silent > 1500, name = late ? "amber" : STATE[state] || "grey";
			cells.fill(index.get(id), a, b, name, name === "blue" && run.hasImages ? SLOW + (1 - SLOW) * Math.min(1, rate / fastest) : 1);
			/* a line through a cell of another state would hide this cell */
			if (many || late || state !== "live")
				continue;
			if (gap || !continued.has(id))
				line.get(id).push(null);
			live.add(id);
			if (stale != null)
				line.get(id).push([x(s.t), y(id) + (row - 4) * (1 - Math.min(1, stale / stalest)) + 1]);
		}
		continued = live;
		before = s.t;
		drawn = x(s.t);
	});
	for (const id of ids.filter(id => !seen.has(id)))
		for (const [from, to] of run.stays(id)) {
			const a = Math.floor(x(from)) - left, b = Math.max(a + CELL, Math.floor(x(to)) - left);
			cells.fill(index.get(id), a, b, "blue", 1);
			cells.fill(index.get(id), b, width, "grey", 1);
		}
	cells.draw(left, top, row, space);
	/* on a cell of a strong colour, the line of staleness can be seen only with an edge */
	const strokes = [[color("card"), 4], [color("pink"), 1.5]];
	for (const points of line.values()) {
		const path = new Path2D();
		let down = false;
		for (const at of points) {
			if (at)
				path[down ? "lineTo" : "moveTo"](...at);
			down = at != null;
		}
		for (const [style, width] of strokes) {
			c.strokeStyle = style;
			c.lineWidth = width;
			c.stroke(path);
		}
	}
	c.save();
	c.beginPath();
	c.rect(left, top, width - left, ids.length * row);
	c.clip();
	for (const absence of run.absences)
		gap(c, x, absence, axis, top, ids.length * row);
	c.restore();
	c.fillStyle = color("quiet");
	c.textBaseline = "middle";
	for (const [i, id] of ids.entries())
		if (!many || i % 10 === 0) {
			const label = text => `${id}  ${text}`, fits = text => c.measureText(label(text)).width <= left - 12;
			c.fillText(label(isolated(shortened(run.names[id] || "", fits))), 2, y(id) + row / 2 - 1);
		}
	c.textBaseline = "alphabetic";
	c.textAlign = "center";
	const [first, last] = [from, to].map(t => when(t, to - from, isDated(to - from) ? 60000 : 1000)), wide = text => c.measureText(text).width;
	const room = [left + wide(first) + 12, width - 18 - wide(last)]; // between the first and the last label
	for (const {v, label} of axis.ticks(begin, begin + span, width - left - 6)) {
		const at = x(axis.time(v)), half = wide(label) / 2;
		if (at - half >= room[0] && at + half <= room[1] && label !== first && label !== last)
			c.fillText(label, at, height - 4);
	}
	c.textAlign = "left";
	c.fillText(first, left, height - 4);
	c.textAlign = "right";
	c.fillText(last, width - 6, height - 4);
	c.textAlign = "left";
	canvas.onredrawn?.();
	return many ? null : stalest;
}

// Lets the pointer, a finger or the arrow keys choose a sample and a worker in a timeline. `note`
// shows what the sample says about the worker. `run` returns the present run.
function explore(box, canvas, note, run) {
	box.setAttribute("aria-description", note.dataset.help);
	const line = document.createElement("i");
	line.className = "cursor";
	box.append(line);
	let chosen = null, worker = 0;
	const place = () => {
		const {ids, top, row, x} = canvas.places;
		line.style.cssText = `left:${x(chosen)}px;top:${top}px;height:${ids.length * row}px;display:block`;
	};
	// Called when the timeline is drawn again, because the samples then have other places.
	canvas.onredrawn = () => chosen != null && place();
	const show = (t, speak) => {
		const samples = run().samples, {ids, top, row} = canvas.places || {};
		if (!samples.length || !ids || !ids.length)
			return;
		let i = samples.findIndex(s => s.t >= t);
		i = i < 0 ? samples.length - 1 : i;
		worker = Math.min(ids.length - 1, Math.max(0, worker));
		chosen = samples[i].t;
		const w = samples[i].workers.find(w => w[0] === ids[worker]), name = run().names[ids[worker]];
		const text = `${when(chosen, Date.now() - chosen)}: worker ${ids[worker]}${name ? ` (${isolated(name)})` : ""}: ` + (!w ? "not there" :
			w[1] + (run().hasImages ? `, ${number(w[2])} images/s` : "") + (w[3] == null ? "" : `, staleness ${number(w[3], 1)}`) +
			(w[4] == null ? "" : `, last message ${silence(w[4])} before`));
		note.textContent = text;
		place();
		if (speak) {
			said(text);
			box.scrollTop += Math.max(0, top + (worker + 1) * row - box.scrollTop - box.clientHeight) -
				Math.max(0, box.scrollTop - top - worker * row);
		}
	};
	canvas.onpointermove = canvas.onpointerdown = e => {
		if (!canvas.places)
			return;
		worker = Math.floor((e.offsetY - canvas.places.top) / canvas.places.row);
		show(canvas.places.time(e.offsetX));
	};
	const hide = () => {
		chosen = null;
		note.textContent = note.dataset.help;
		line.style.display = "none";
	};
	// When a finger is lifted, its choice stays until the page scrolls under a finger, or until
	// a finger touches another place.
	canvas.onpointerleave = e => e.pointerType === "touch" || hide();
	canvas.onpointercancel = box.onblur = hide;
	addEventListener("pointerdown", e => box.contains(e.target) || hide());
	takeKeys(box, "timeline", e => {
		const samples = run().samples, last = samples.length - 1, now = chosen == null ? last : samples.findIndex(s => s.t >= chosen);
		const at = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, ArrowUp: now, ArrowDown: now}[e.key];
		if (at === undefined || !samples.length)
			return;
		e.preventDefault();
		if (chosen != null)
			worker += {ArrowUp: -1, ArrowDown: 1}[e.key] || 0;
		show(samples[Math.min(last, Math.max(0, at))].t, true);
	});
	note.textContent = note.dataset.help;
}

function theme(name) {
	document.documentElement.dataset.theme = name;
}

// charts.js - draws a history (docs/monitoring.md) as curves and as a timeline of workers.
"use strict";

const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const $ = id => document.getElementById(id);
const number = (x, digits = 0) => x == null || !isFinite(x) ? "–" :
	x.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const percent = x => x == null ? "–" : number(100 * x, 2) + " %";
const seconds = s => s == null ? "" : s < 90 ? Math.ceil(s) + " s" :
	s < 5400 ? Math.round(s / 60) + " min" : number(s / 3600, 1) + " h";

// Returns a loss as text. A loss may be as small as 1e-12.
const lossText = x => x > 0 && x < 0.001 ? x.toExponential(1) : number(x, 4);
// Returns the label of a loss on an axis, as short as possible, so that it stays on one line.
function lossLabel(x) {
	const short = Number(x.toPrecision(3));
	return short === 0 || short >= 0.01 && short < 1e5 ? String(short) : short.toExponential();
}

// Return the least and the greatest number of a list. Math.min and Math.max take a limited number
// of arguments, and a list may have more.
const least = (list, start) => list.reduce((a, b) => b < a ? b : a, start);
const greatest = (list, start) => list.reduce((a, b) => b > a ? b : a, start);

// The data of a history. `room` limits the samples; a sample counts SAMPLE plus its number of
// workers. When the samples exceed the limit, the run drops every other sample, and from then on it
// keeps half as many of the new samples.
const SAMPLE = 100;
class Run {
	constructor(name, room = Infinity) {
		this.name = name;
		this.room = room;
		this.samples = [];
		this.used = 0;
		// minimum time between two samples; the newest sample always stays
		this.distance = 0;
		this.epochs = [];
		this.starts = [];
		this.changes = [];
		this.gaps = []; // [from, to]: times without a server
		this.last = 0;
		this.away = 0; // milliseconds since this.last in which the page has had no server
		this.end = null;
	}
	// The times without a server, with the present one.
	get absences() {
		return this.away ? [...this.gaps, [this.last, this.now]] : this.gaps;
	}
	get now() {
		return this.last + this.away;
	}
	take(o) {
		if (o.kind === "start") {
			if (o.resumed && this.last)
				this.gaps.push([this.last, o.t]);
			this.starts.push(o);
			this.end = null;
		} else if (o.kind === "sample") {
			this.takeSample(o);
		} else if (o.kind === "epoch") {
			this.epochs.push(o);
		} else if (o.kind === "worker") {
			this.changes.push(o);
		} else if (o.kind === "end") {
			this.end = o;
		}
		this.last = Math.max(this.last, o.t);
	}
	takeSample(o) {
		const s = this.samples, cost = o => SAMPLE + o.workers.length;
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
	// The number of training images that the run holds back and evaluates, or 0 if the run
	// evaluates the test images.
	get heldBack() {
		return this.starts.length && this.starts[0].options?.validate || 0;
	}
	takeText(text) {
		for (const line of text.split("\n"))
			if (line)
				this.take(JSON.parse(line));
	}
	// Returns rows [t, value of each series] for a chart. `series` is a list of [list, field,
	// factor]. At a gap the lines of the chart break.
	rows(series, at = t => new Date(t)) {
		const rows = [];
		series.forEach(([list, field, factor], i) => {
			for (const o of list)
				if (o[field] != null) {
					const row = new Array(series.length + 1).fill(null);
					row[0] = o.t;
					row[i + 1] = o[field] * (factor || 1);
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

function chart(id, names, colors, run, options) {
	const el = $("chart-" + id), legend = $("legend-" + id);
	// there is no value yet, but a logarithmic axis needs a range
	const g = new Dygraph(el, [[new Date(0), ...names.map(() => null)]], Object.assign({
		labels: ["t", ...names], legend: "always", labelsDiv: legend, connectSeparatedPoints: true,
		strokeWidth: 2, axisLabelFontSize: 11, gridLineWidth: 1, axisLineColor: "transparent",
		highlightCircleSize: 4, includeZero: false, valueRange: [0.1, 1], yRangePad: 6, xRangePad: 6, interactionModel: {}, resizable: "passive",
		legendFormatter: d => d.series.filter(s => s.isVisible).map(s =>
			`<span style="color:${s.color}">●</span> ${s.labelHTML} ` +
			(s.yHTML ? `<b>${s.yHTML}</b>` : "")).join(" &nbsp; "),
		underlayCallback: (c, area, g) => marks(c, area, g, run())
	}, options));
	// with the keyboard: a row of the chart, whose values the legend shows
	let row = -1;
	el.tabIndex = 0;
	el.onkeydown = e => {
		const rows = g.numRows(), step = {ArrowLeft: -1, ArrowRight: 1, Home: -rows, End: rows}[e.key];
		if (!step || el.classList.contains("empty"))
			return;
		e.preventDefault();
		row = Math.min(rows - 1, Math.max(0, (row < 0 ? rows : row) + step));
		g.setSelection(row);
		const x = g.getValue(row, 0);
		said(`${at(x)}: ${legend.textContent.replaceAll("●", "")}`);
	};
	el.onblur = () => {
		row = -1;
		g.clearSelection();
	};
	g.paint = () => g.updateOptions({colors: colors.map(color), gridLineColor: color("line")});
	return g;
}

// Returns the text of a value of the x axis: a time of the clock, seconds or an epoch.
function at(x) {
	return typeof x === "number" && x < 1e11 ? number(x) : new Date(x).toLocaleTimeString("en-GB");
}

// Gives a text to screen readers.
function said(text) {
	let el = $("said");
	if (!el) {
		el = document.createElement("p");
		el.id = "said";
		el.className = "said";
		el.setAttribute("aria-live", "polite");
		document.body.append(el);
	}
	el.textContent = text;
}

// Mark the times without a server and the checkpoints, behind the curves.
function marks(c, area, g, run) {
	if (!run)
		return;
	const x = t => g.toDomXCoord(run.at ? run.at(t) : t);
	for (const [from, to] of run.absences) {
		c.fillStyle = color("gap");
		c.fillRect(x(from), area.y, Math.max(3, x(to) - x(from)), area.h);
		c.fillStyle = color("orange");
		c.fillRect(x(to), area.y, 1.5, area.h);
	}
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
	excluded: "orange", quarantined: "orange", dead: "grey"};

// The cells of the timeline as a small picture in which each row is one pixel high. The picture is
// then enlarged, because drawing 50,000 rectangles would take 0.1 s.
class Cells {
	constructor(c, width, rows) {
		this.c = c;
		this.picture = rows ? new ImageData(width, rows) : null;
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
		this.pixels.fill(value, row * width + Math.max(0, from), row * width + Math.min(width, Math.max(from + 1, to)));
	}
	draw(left, top, height, space) {
		if (!this.picture)
			return;
		const {width, height: rows} = this.picture, small = document.createElement("canvas");
		small.width = width;
		small.height = rows;
		small.getContext("2d").putImageData(this.picture, 0, 0);
		this.c.imageSmoothingEnabled = false;
		for (let i = 0; i < rows && space; i++)
			this.c.drawImage(small, 0, i, width, 1, left, top + i * height, width, height - space);
		if (!space)
			this.c.drawImage(small, left, top, width, rows * height);
	}
}

const MANY = 60; // maximum number of workers for which each row has a line of staleness

// The timeline has a row for each worker and a cell for each sample. A cell is at least CELL pixels
// wide: the timeline omits a sample that is less than CELL pixels after the last drawn sample.
const CELL = 2;
// Draws the timeline. Returns the staleness at the upper edge of a row, or null if there are too
// many workers for lines of staleness.
function timeline(canvas, run, names) {
	const samples = run.samples, found = new Set();
	for (const s of samples)
		for (const w of s.workers)
			found.add(w[0]);
	const ids = [...found].sort((a, b) => a - b);
	const many = ids.length > MANY; /* thin rows, without lines of staleness */
	const row = many ? 4 : ids.length > 24 ? 12 : 22, space = many ? 0 : 2, left = 120, top = 4;
	const width = Math.max(280, canvas.parentElement.clientWidth - 2), height = ids.length * row + top + 20;
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
	const from = samples[0].t - 1000, to = Math.max(run.now, from + 2000);
	const x = t => left + (t - from) / (to - from) * (width - left - 6);
	const index = new Map(ids.map((id, i) => [id, i])), y = id => top + index.get(id) * row;
	let fastest = 1, stalest = 4;
	for (const s of samples)
		for (const w of s.workers) {
			fastest = Math.max(fastest, w[2]);
			stalest = Math.max(stalest, w[3] || 0);
		}
	const cells = new Cells(c, width - left - 6, ids.length);
	let before = from, drawn = left, next = 0;
	const line = new Map(ids.map(id => [id, []]));
	samples.forEach((s, i) => {
		const gap = next < run.gaps.length && run.gaps[next][0] < s.t;
		if (!gap && i < samples.length - 1 && x(s.t) - drawn < CELL)
			return;
		let begin = before;
		for (; next < run.gaps.length && run.gaps[next][0] < s.t; next++)
			begin = Math.max(begin, run.gaps[next][1]);
		const a = Math.floor(x(begin)) - left, b = Math.floor(x(s.t)) - left;
		for (const [id, state, rate, stale, silent] of s.workers) {
			const late = state === "live" && silent > 1500, name = late ? "amber" : STATE[state] || "grey";
			cells.fill(index.get(id), a, b, name, name === "blue" ? 0.25 + 0.75 * rate / fastest : 0.9);
			if (many)
				continue;
			if (gap)
				line.get(id).push(null);
			if (stale != null)
				line.get(id).push([x(s.t), y(id) + (row - 4) * (1 - stale / stalest) + 1]);
		}
		before = s.t;
		drawn = x(s.t);
	});
	cells.draw(left, top, row, space);
	c.strokeStyle = color("pink");
	c.lineWidth = 1.5;
	for (const points of line.values()) {
		c.beginPath();
		let down = false;
		for (const at of points) {
			if (at)
				c[down ? "lineTo" : "moveTo"](...at);
			down = at != null;
		}
		c.stroke();
	}
	for (const [a, b] of run.absences) {
		c.fillStyle = color("gap");
		c.fillRect(x(a), top, Math.max(3, x(b) - x(a)), ids.length * row);
		c.fillStyle = color("orange");
		c.fillRect(x(b), top, 1.5, ids.length * row);
	}
	c.fillStyle = color("quiet");
	c.textBaseline = "middle";
	for (const [i, id] of ids.entries())
		if (!many || i % 10 === 0) {
			let text = `${id}  ${names[id] || ""}`;
			while (text.length > 3 && c.measureText(text).width > left - 12)
				text = text.slice(0, -2) + "…";
			c.fillText(text, 2, y(id) + row / 2 - 1);
		}
	c.textBaseline = "alphabetic";
	const clock = t => new Date(t).toLocaleTimeString("en-GB");
	c.fillText(clock(from), left, height - 4);
	c.textAlign = "right";
	c.fillText(clock(to), width - 6, height - 4);
	c.textAlign = "left";
	return many ? null : stalest;
}

function namesOf(run) {
	const names = {};
	for (const o of run.changes)
		names[o.worker] = o.name || o.host || names[o.worker];
	return names;
}

function theme(name) {
	document.documentElement.dataset.theme = name;
}

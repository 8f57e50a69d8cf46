// charts.js - a history (docs/monitoring.md) as curves and as a timeline of workers.
"use strict";

const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const $ = id => document.getElementById(id);
const number = (x, digits = 0) => x == null || !isFinite(x) ? "–" :
	x.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const percent = x => x == null ? "–" : number(100 * x, 2) + " %";
const seconds = s => s == null ? "" : s < 90 ? Math.ceil(s) + " s" :
	s < 5400 ? Math.round(s / 60) + " min" : number(s / 3600, 1) + " h";

// What the lines of a history say.
class Run {
	constructor(name) {
		this.name = name;
		this.samples = [];
		this.epochs = [];
		this.starts = [];
		this.changes = [];
		this.gaps = []; // [from, to]: no server
		this.last = 0;
		this.end = null;
	}
	take(o) {
		if (o.kind === "start") {
			if (o.resumed && this.last)
				this.gaps.push([this.last, o.t]);
			this.starts.push(o);
			this.end = null;
		} else if (o.kind === "sample") {
			this.samples.push(o);
		} else if (o.kind === "epoch") {
			this.epochs.push(o);
		} else if (o.kind === "worker") {
			this.changes.push(o);
		} else if (o.kind === "end") {
			this.end = o;
		}
		this.last = Math.max(this.last, o.t);
	}
	takeText(text) {
		for (const line of text.split("\n"))
			if (line)
				this.take(JSON.parse(line));
	}
	// Rows [t, value of each series] for a chart. `series`: [list, field]. A gap breaks the lines.
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
	// no value yet: a logarithmic axis needs a range
	const g = new Dygraph(el, [[new Date(0), ...names.map(() => null)]], Object.assign({
		labels: ["t", ...names], legend: "always", labelsDiv: legend, connectSeparatedPoints: true,
		strokeWidth: 2, axisLabelFontSize: 11, gridLineWidth: 1, axisLineColor: "transparent",
		highlightCircleSize: 4, includeZero: false, valueRange: [0.1, 1], yRangePad: 6, xRangePad: 6, interactionModel: {}, resizable: "passive",
		legendFormatter: d => d.series.filter(s => s.isVisible).map(s =>
			`<span style="color:${s.color}">●</span> ${s.labelHTML} ` +
			(s.yHTML ? `<b>${s.yHTML}</b>` : "")).join(" &nbsp; "),
		underlayCallback: (c, area, g) => marks(c, area, g, run())
	}, options));
	g.paint = () => g.updateOptions({colors: colors.map(color), gridLineColor: color("line")});
	return g;
}

// Draw the times without a server, and the checkpoints, under the curves.
function marks(c, area, g, run) {
	if (!run)
		return;
	const x = t => g.toDomXCoord(run.at ? run.at(t) : t);
	for (const [from, to] of run.gaps) {
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
	excluded: "orange", dead: "grey"};

// The timeline: a row for each worker, a cell for each sample.
function timeline(canvas, run, names) {
	const ids = [...new Set(run.samples.flatMap(s => s.workers.map(w => w[0])))].sort((a, b) => a - b);
	const many = ids.length > 60; /* thin rows, without lines of staleness */
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
	if (!run.samples.length)
		return;
	const from = run.samples[0].t - 1000, to = Math.max(run.last, from + 2000);
	const x = t => left + (t - from) / (to - from) * (width - left - 6);
	const y = Object.fromEntries(ids.map((id, i) => [id, top + i * row]));
	const all = run.samples.flatMap(s => s.workers);
	const fastest = Math.max(1, ...all.map(w => w[2])), stalest = Math.max(4, ...all.map(w => w[3] || 0));
	let before = from;
	const line = {};
	for (const s of run.samples) {
		const gap = run.gaps.find(([a, b]) => b > before && a < s.t);
		const begin = gap ? Math.max(before, gap[1]) : before;
		for (const [id, state, rate, stale, silent] of s.workers) {
			const late = state === "live" && silent > 1500;
			c.fillStyle = color(late ? "amber" : STATE[state] || "grey");
			c.globalAlpha = STATE[state] === "blue" && !late ? 0.25 + 0.75 * rate / fastest : 0.9;
			const a = Math.floor(x(begin)), b = Math.floor(x(s.t));
			c.fillRect(a, y[id], Math.max(1, b - a), row - space);
			line[id] = line[id] || [];
			if (gap)
				line[id].push(null);
			if (stale != null && !many)
				line[id].push([x(s.t), y[id] + (row - 4) * (1 - stale / stalest) + 1]);
		}
		before = s.t;
	}
	c.globalAlpha = 1;
	for (const id in line) {
		c.strokeStyle = color("pink");
		c.lineWidth = 1.5;
		c.beginPath();
		let down = false;
		for (const at of line[id]) {
			if (at)
				c[down ? "lineTo" : "moveTo"](...at);
			down = at != null;
		}
		c.stroke();
	}
	for (const [a, b] of run.gaps) {
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
			c.fillText(text, 2, y[id] + row / 2 - 1);
		}
	c.textBaseline = "alphabetic";
	const clock = t => new Date(t).toLocaleTimeString("en-GB");
	c.fillText(clock(from), left, height - 4);
	c.textAlign = "right";
	c.fillText(clock(to), width - 6, height - 4);
	c.textAlign = "left";
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
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

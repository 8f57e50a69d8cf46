// live.js - the page of a running server. For each connection, the page reads /history/short once and
// then the events of /events: "line" is a new line of the history, "status" comes once a second,
// and "wall" has test images with a worker's predictions.
const ROOM = 100000; // about 1,000 samples of a few workers, or 330 samples of 200 workers
let run = new Run("", ROOM);
let hasHistory = false; // whether the history has arrived; until then, the best epoch is unknown
let status = null, lost = 0;
let stream = null, arrived = 0; // the stream, and the time of its last event

// A browser opens at most six connections to a server over HTTP/1.1, and a window that gets none stays
// blank. Each stream takes one connection. So at most WINDOWS windows of a browser have a stream: the
// ones that were used last. Such a window tells the others every second that it has a stream. `others`
// has the newest message of each of them, and the time of its arrival. After FORGET milliseconds
// without another message, such a window no longer counts.
const WINDOWS = 4, FORGET = 3500;
const channel = new BroadcastChannel("cnnps"), me = String(Math.random()), others = new Map();
let since = 0, paused = false; // when this window was used last; whether it has given up its stream

// A server sends an event each second. After QUIET milliseconds without an event, the page shows that
// nothing arrives. After RECONNECT milliseconds, it opens a new stream, because the network may have
// lost the old one.
const QUIET = 4000, RECONNECT = 20000;

// Shows a text in an element, unless the element has this text already: a change ends the user's
// selection of the text.
function setText(el, text) {
	if (el.textContent !== String(text))
		el.textContent = text;
}
const show = (id, text) => setText($(id), text);

const live = () => run;
// A run of vector:N has no images, so it has no epochs and no results.
const hasImages = () => !status || status.epochs > 0;
const hasAccuracy = () => run.measure === "accuracy";
// Returns the label of a percentage on the axis of chart `g`, with as many digits as its range needs.
function percentLabel(v, granularity, options, g) {
	const [low, high] = g.yAxisRange();
	return number(v, high - low < 1 ? 2 : 1) + " %";
}
// Returns a rate as text. A run of many weights may make less than one update per second.
const rateText = x => number(x, !(x > 0 && x < 10) ? 0 : x < 1 ? 2 : 1);
// Returns the label of a rate on its axis. The ticks are sums, such as 0.1 + 0.2.
function rateLabel(v) {
	const short = x => Number(x.toPrecision(6));
	return v >= 1000 ? short(v / 1000) + " k" : short(v);
}
const POINTS = {drawPoints: true, pointSize: 3};
const curves = [
	chart("accuracy", ["test images"], ["green"], live, {
		...POINTS, axes: {y: {valueFormatter: v => hasAccuracy() ? number(v, 2) + " %" : measureText(v),
			axisLabelFormatter: (v, ...more) => hasAccuracy() ? percentLabel(v, ...more) : lossLabel(v, ...more), axisLabelWidth: 56}}}),
	chart("loss", ["training", "test"], ["blue", "orange"], live, {
		logscale: true, series: {test: POINTS, validation: POINTS}, axes: {y: LOSS_AXIS}}),
	chart("rate", ["images/s"], ["blue"], live, {
		fillGraph: true, includeZero: true, axes: {y: {valueFormatter: rateText, axisLabelFormatter: rateLabel, axisLabelWidth: 46}}}),
];

// Names the result of an evaluation in the titles, and the evaluated images in the legends. A legend has the time as its first label.
function nameCurves() {
	for (const id of ["measure", "measure-title"])
		show(id, run.title);
	const names = [run.heldBack ? "held-back images" : "test images", run.heldBack ? "validation" : "test",
		hasImages() ? "images/s" : "updates/s"];
	if (curves[1].visibility()[1] !== hasImages())
		curves[1].setVisibility(1, hasImages());
	names.forEach((name, i) => {
		const labels = curves[i].getLabels();
		if (labels[labels.length - 1] !== name)
			curves[i].updateOptions({labels: [...labels.slice(0, -1), name]});
	});
}

// Returns the function that gives the updates per second from the previous sample to a sample.
function updateRate(samples) {
	const rates = new Map();
	samples.forEach((o, i) => i && rates.set(o, 1000 * Math.max(0, o.updates - samples[i - 1].updates) / (o.t - samples[i - 1].t)));
	return o => rates.get(o);
}

function drawCurves() {
	nameCurves();
	const s = run.samples, e = run.epochs, rate = hasImages() ? o => o.images_per_s : updateRate(s);
	const name = run.measure, result = o => measured(o, name), evaluated = e.filter(o => result(o) != null);
	const values = {accuracy: evaluated, loss: s.concat(e).filter(o => o.loss != null || o.test_loss != null), rate: s};
	for (const id in values)
		$("chart-" + id).classList.toggle("empty", !values[id].length);
	if (!s.length && !e.length)
		return;
	const axis = run.axis, at = t => new Date(axis.place(t));
	const window = [at(run.first), at(run.now + 500)];
	const rows = [
		run.rows([[evaluated, o => result(o) * (hasAccuracy() ? 100 : 1)]], at),
		run.rows([[s, o => o.loss], [e, o => o.test_loss]], at),
		run.rows([[s, rate]], at),
	];
	curves.forEach((g, i) => rows[i].length && g.draw(rows[i], axis, {dateWindow: window, valueRange: null}));
	if (evaluated.length && hasAccuracy()) {
		const all = evaluated.map(o => 100 * o.accuracy), low = least(all, 100), high = greatest(all, 0);
		const pad = Math.max(0.2, (high - low) / 10);
		curves[0].updateOptions({valueRange: [Math.max(0, low - pad), Math.min(100, high + pad)]});
	}
	const last = e[e.length - 1];
	$("chart-accuracy").setAttribute("aria-label", last ? `${run.title} after epoch ${last.epoch}: ${measureText(result(last), name)}` : `No ${run.title.toLowerCase()} yet`);
	const now = s[s.length - 1];
	if (now) {
		$("chart-loss").setAttribute("aria-label", `Loss now ${lossText(now.loss)}`);
		$("chart-rate").setAttribute("aria-label", `${rateText(rate(now))} ${hasImages() ? "images" : "updates"} per second`);
	}
}

// The texts of the cells in the table of workers, row by row. To set a text takes much longer than to
// compare it, and most texts stay the same.
const COLUMNS = [["#", ""], ["name", "text"], ["state", "text"], ["images/s", ""], ["staleness", ""], ["silent", ""],
	["host", "text"], ["device", "text"], ["pushes", ""], ["duplicates", ""], ["rejected", ""], ["refused", ""]];
const workerRows = [];

function setCell(td, text, css) {
	if (!css) {
		td.textContent = text;
		return;
	}
	fill(td, text);
	td.title = text; /* shows the whole text, which the cell may cut */
}

// Adds a row with empty cells to the table of workers.
function addRow(body) {
	const row = body.insertRow();
	for (const [, css] of COLUMNS)
		row.insertCell().className = css;
	workerRows.push({row, cells: [...row.cells], texts: []});
}

function workerTexts(w, over) {
	return [String(w.worker), w.name || "–", over ? "–" : w.state, over ? "–" : rateText(w.images_per_s),
		number(w.staleness, 1), over ? "–" : silence(w.silent_ms), w.host ? w.host + (w.pid ? ":" + w.pid : "") : "–",
		w.device || "–", number(w.last_seq), number(w.duplicates), number(w.rejected), number(w.refusals)];
}

function drawWorkers() {
	const table = $("workers"), body = table.tBodies[0];
	if (!table.tHead.rows.length) {
		const row = table.tHead.insertRow();
		for (const [text, css] of COLUMNS) {
			const th = document.createElement("th");
			th.scope = "col";
			th.textContent = text;
			th.className = css;
			row.append(th);
		}
	}
	while (workerRows.length > status.workers.length)
		workerRows.pop().row.remove();
	while (workerRows.length < status.workers.length)
		addRow(body);
	$("workers-box").classList.toggle("many", status.workers.length > MANY);
	const over = lost || ended();
	status.workers.forEach((w, i) => {
		const {row, cells, texts} = workerRows[i];
		const css = lost ? "" : ["suspect", "stalled", "excluded", "quarantined"].includes(w.state) ? "late" : ["away", "dead"].includes(w.state) ? "away" : "";
		if (row.className !== css)
			row.className = css;
		workerTexts(w, over).forEach((text, c) => {
			if (texts[c] !== text)
				setCell(cells[c], texts[c] = text, COLUMNS[c][1]);
		});
	});
}

function drawCounters() {
	const c = status.counters, made = status.checkpoint;
	const rows = [["gradients decided", c.pushes], ["duplicates, not applied again", c.duplicates], ["arrived out of order", c.gaps],
		["superseded", c.superseded], ["rejected" + rejectedFor(c), c.rejected], ["messages refused", c.refusals],
		["workers lost", c.deaths], ["workers joined again, restarted or back", c.rejoins], ["server recovered", c.recoveries],
		["generation of the newest checkpoint", made?.generation, made && "ckpt-" + made.generation.toString(16).padStart(16, "0")]];
	rows.forEach(([name, value, file], i) => {
		const [dt, dd] = ($("once").children[i] || addCounter($("once"))).children, before = file ? name + ", " : name;
		setText(dd, number(value));
		if (dt.textContent === before + (file || ""))
			return;
		dt.textContent = before;
		if (file)
			add(dt, "span", file, "file");
	});
}

// Adds a counter without a name and a value to their list.
function addCounter(list) {
	const group = add(list, "div");
	add(group, "dt");
	add(group, "dd");
	return group;
}

// Returns a text with the results of status `s` that the tile does not show in large letters, and with
// the best epoch.
function otherResults(s) {
	const name = run.measure, texts = metricTexts(s, name), b = hasHistory && run.best;
	if (name !== "accuracy" && name !== TEST_LOSS && s.test_loss != null)
		texts.push(`${s.data.validate ? "validation" : "test"} loss ${lossText(s.test_loss)}`);
	if (b && name === "accuracy")
		texts.unshift(`best ${percent(b.accuracy)}`);
	else if (b)
		texts.push(`best ${lossText(b.test_loss)} in epoch ${b.epoch}`);
	return texts.join(" · ");
}

// Draws the newest status, except the state of the run and the notice.
function drawValues() {
	const s = status;
	show("model", `${s.model} · ${s.mode}, ${s.optimizer} · ${number(s.n_params)} weights` +
		(s.data.validate ? ` · evaluated on ${number(s.data.validate)} training images held back` : ""));
	const name = run.measure, result = measured(s, name), shown = measureText(result, name);
	document.title = (result == null ? "" : (hasAccuracy() ? "" : run.title + " ") + shown + " · ") + "cnn-ps";
	document.body.classList.toggle("vector", !hasImages());
	$("chart-loss").dataset.empty = s.updates ? "no loss above 0" : "no gradient yet";
	show("epoch-title", hasImages() ? "Epoch" : "Updates");
	show("epoch", hasImages() ? `${s.training_epoch} / ${s.epochs}` :
		number(s.updates) + (s.max_updates ? ` / ${number(s.max_updates)}` : ""));
	$("done").hidden = s.done_ratio == null;
	$("done").value = s.done_ratio || 0;
	show("accuracy", shown);
	show("best", otherResults(s) || (result == null ? "after the first epoch" : ""));
	show("loss", s.updates ? lossText(s.loss) : "–");
	const over = lost || ended();
	show("rate-title", hasImages() ? "Images/s" : "Updates/s");
	show("rates-title", hasImages() ? "Images per second" : "Updates per second");
	show("rate", over ? "–" : rateText(hasImages() ? s.images_per_s : s.updates_per_s));
	show("eta", over || s.eta_s == null ? "" : seconds(s.eta_s) + " left");
	show("live", over ? "–" : s.live_workers);
	noteWall();
	show("staleness", over || s.staleness_mean == null ? "" : `staleness ${number(s.staleness_mean, 1)}`);
	drawWorkers();
	drawCounters();
	show("foot", `run ${s.run.slice(0, 12)} · start ${s.term} of the server · ` +
		`${number(s.rss_bytes / 1048576)} MiB · up ${seconds(s.uptime_s)}`);
}

// The time in a text such as "waiting for workers: 0 of 1 for 12 s: cnn-worker".
const WAITED = / (for \d+ s)(?=[:,])/;

function drawStatus() {
	const s = status, failed = FAILED[s.ending];
	state(s.ending ? endWord() : s.state, s.degraded || failed ? "bad" : s.ending ? "good" : s.state === "training" ? "busy" : "");
	const [waited = "", time = ""] = s.waiting?.match(WAITED) || [];
	const words = s.degraded ? "Disk: " + s.degraded : failed || endsEarly() || s.waiting?.replace(waited, "") || s.warnings[0] || "";
	notice(words, !s.degraded && !failed && !s.warnings.length, s.degraded || failed || s.stop_reason ? "" : time);
	drawValues();
}

// Draws an image of the wall. Each pixel is one byte: grey, or 3 + 3 + 2 bits of red, green and
// blue.
function drawImage(canvas, wall, image) {
	const bytes = atob(image.pixels), [rows, columns] = wall.side;
	canvas.width = columns;
	canvas.height = rows;
	// an image that is not square keeps its proportions inside a square
	canvas.style.aspectRatio = `${columns} / ${rows}`;
	canvas.style.width = 100 * Math.min(1, columns / rows) + "%";
	const c = canvas.getContext("2d"), picture = c.createImageData(columns, rows);
	for (let i = 0; i < rows * columns; i++) {
		const b = bytes.charCodeAt(i);
		const rgb = wall.color ? [b & 0xe0, (b & 0x1c) << 3, (b & 3) << 6].map(x => x + 16) : [b, b, b];
		picture.data.set([...rgb, 255], 4 * i);
	}
	c.putImageData(picture, 0, 0);
}

// The newest images for the wall that arrived before the first status; null: none.
let early = null;

// What the wall shows now: the number of images, and the number of right answers.
let wallNow = null;
function noteWall() {
	if (wallNow)
		show("wall-note", `${wallNow.right} of ${wallNow.all} ${status.data.validate ? "held-back" : "test"} images right, ` +
			(lost || ended() || !status.live_workers ? "when a worker evaluated them last." : "evaluated by a worker every other second while this page is open.") +
			" The bar is how sure the network is.");
}

// Removes the images from the wall, because they are of another run.
function clearWall() {
	wallNow = null;
	$("wall-card").hidden = true;
	$("wall").replaceChildren();
}

function onWall(wall) {
	if (!wall.side.every(n => n <= 64)) /* check the numbers, because a worker sent them */
		return;
	early = status ? null : wall;
	if (early)
		return;
	const list = $("wall"), names = wall.names || {};
	const named = n => names[n] ? `${n} (${names[n]})` : n;
	$("wall-card").hidden = false;
	const highest = greatest(wall.images.map(i => Math.max(i.class, i.label)), 0);
	list.classList.toggle("named", !!wall.names || highest > 99); /* long numbers take two lines, as names do */
	list.classList.toggle("wide", !!wall.names || highest > 9);
	while (list.children.length > wall.images.length)
		list.lastChild.remove();
	let right = 0;
	wall.images.forEach((image, i) => {
		let li = list.children[i];
		if (!li) {
			li = document.createElement("li");
			li.innerHTML = '<canvas></canvas><p class="answer"></p><div class="sure"><i></i></div>';
			list.append(li);
		}
		if (li.dataset.pixels !== image.pixels)
			drawImage(li.firstChild, wall, image);
		li.dataset.pixels = image.pixels;
		const good = image.class === image.label;
		right += good;
		li.className = good ? "right" : "wrong";
		setText(li.children[1], `${good ? "✓" : "✗"} ${names[image.class] || image.class}`);
		li.children[2].firstChild.style.width = 100 * image.sure + "%";
		li.title = `label ${named(image.label)}; answer ${named(image.class)}, ${percent(image.sure)} sure`;
		li.setAttribute("aria-label", li.title);
		// a touch screen shows no title, so page.css shows the right answer from data-not
		li.children[1].dataset.not = good ? "" : ` ≠ ${wall.names?.[image.label] || image.label}`;
	});
	wallNow = {right, all: wall.images.length};
	noteWall();
}

function state(text, css) {
	show("state", text);
	$("state").className = "pill " + css;
}

// Shows a notice, and how long it has been true. A screen reader reads the text whenever it changes,
// so the time, which changes each second, is an element of its own.
function notice(text, calm = false, time = "") {
	$("notice").classList.toggle("calm", calm);
	if ($("notice-text").textContent !== text)
		// in a command, no line ends inside the name of a program or of an option
		$("notice-text").replaceChildren(...text.split(/((?:--|cnn-)[a-z-]+)/).map((part, i) =>
			i % 2 ? Object.assign(document.createElement("span"), {className: "word", textContent: part}) : part));
	$("notice-time").textContent = time && ` (${time})`;
	$("notice").hidden = !text;
}

// Draws the timeline. While the timeline is not visible, it is drawn only every UNSEEN
// milliseconds, because with 200 workers it takes most of the drawing time.
const UNSEEN = 10000;
let sees = false, painted = 0;
function drawTimeline(now = sees) {
	if (!now && Date.now() - painted < UNSEEN)
		return;
	painted = Date.now();
	const stalest = timeline($("timeline"), run);
	$("key-faster").hidden = !run.hasImages;
	$("key-line").hidden = stalest == null;
	show("stalest", number(stalest, 1));
}
new IntersectionObserver(entries => {
	sees = entries[entries.length - 1].isIntersecting;
	drawTimeline();
}).observe($("timeline-box"));
addEventListener("beforeprint", () => drawTimeline(true));

// Draws the newest status and history, but at most once in PERIOD milliseconds and for at most half of
// the time. On a slow machine, the page therefore still answers, and it skips the events between two
// drawings instead of falling behind.
const PERIOD = 1000;
let drawing = 0, rested = 0; // the timer of the next drawing, and the time from which the page may draw again
function drawSoon() {
	drawing ||= setTimeout(drawNow, Math.max(0, rested - performance.now()));
}
function drawNothingSoon() {
	clearTimeout(drawing);
	drawing = 0;
}
function drawNow() {
	const begun = performance.now(), rest = () => rested = Math.max(begun + PERIOD, 2 * performance.now() - begun);
	drawing = 0;
	drawStatus();
	if (!document.hidden)
		draw();
	rest();
	requestAnimationFrame(() => setTimeout(rest)); /* by then, the browser has also computed the layout */
}

// Draws everything, and describes the timeline for screen readers: the states of the first SPOKEN
// workers, and the number of the others.
const SPOKEN = 12;
function draw() {
	drawCurves();
	drawTimeline();
	const last = run.samples[run.samples.length - 1];
	$("timeline-box").setAttribute("aria-label", last ? "State of each worker: " +
		last.workers.slice(0, SPOKEN).map(w => `worker ${w[0]} ${w[1]}`).join(", ") +
		(last.workers.length > SPOKEN ? `, and ${last.workers.length - SPOKEN} more workers` : "") : "No worker yet");
}

// Opens the stream, then reads the history. A line that is written between the two steps may arrive
// in both the stream and the history. Until the history has arrived, which may take long, the page
// draws the new lines.
function connect() {
	if (document.hidden)
		return;
	paused = false;
	tellWindows();
	stream?.close();
	const events = stream = new EventSource("events");
	let waiting = [], opened = false;
	arrived = Date.now();
	events.onopen = async () => {
		opened = true;
		const fresh = new Run("", ROOM);
		let text, reply;
		try {
			do { /* 503: the server is sending too many large answers */
				if (reply)
					await new Promise(then => setTimeout(then, 1000 * (+reply.headers.get("Retry-After") || 1)));
				if (stream !== events)
					return;
				reply = await fetch("history/short", {cache: "no-store"});
			} while (reply.status === 503);
			text = reply.ok ? await reply.text() : "";
		} catch {
			text = "";
		}
		if (!text) { /* the connection is lost or was cut: try again */
			setTimeout(() => stream === events && events.dispatchEvent(new Event("error")), 1000);
			return;
		}
		if (stream !== events)
			return;
		fresh.takeText(text);
		for (const line of waiting) {
			const o = JSON.parse(line);
			if (o.t > fresh.last || o.kind !== "sample" && !text.includes(line))
				fresh.take(o);
		}
		waiting = null;
		fresh.toldHeldBack = run.toldHeldBack;
		run = fresh;
		hasHistory = true;
		draw();
		if (status && !lost)
			drawSoon();
	};
	events.addEventListener("line", e => {
		arrived = Date.now();
		if (waiting)
			waiting.push(e.data);
		run.take(JSON.parse(e.data));
	});
	events.addEventListener("status", e => {
		arrived = Date.now();
		const before = status;
		status = JSON.parse(e.data);
		if (before && before.run !== status.run)
			clearWall();
		lost = run.away = 0;
		run.toldHeldBack = status.data.validate;
		document.body.classList.remove("lost");
		if (early)
			onWall(early);
		drawSoon();
	});
	events.addEventListener("wall", e => onWall(JSON.parse(e.data)));
	events.onerror = async () => {
		events.close();
		if (stream !== events)
			return;
		stream = null;
		if (!opened && await answer() === 200) {
			state("not connected", "");
			notice("16 pages are open already. This page gets the place of one of them within a minute.");
			setTimeout(reconnect, 1000);
		} else {
			retry();
		}
	};
}

// Notes that this window is used now, and connects if it is paused or new.
function useWindow(connects) {
	since = performance.timeOrigin + performance.now();
	if (connects)
		connect();
}

function tellWindows(has = true) {
	channel.postMessage({me, since: has ? since : 0});
}

// Gives up the stream if WINDOWS newer windows have one, or connects again if there is room. `since`
// stays then, so that this window takes the place of no other one.
function shareStreams() {
	for (const [id, o] of others)
		if (performance.now() - o.at > FORGET)
			others.delete(id);
	if (stream && [...others.values()].filter(o => o.since > since).length >= WINDOWS)
		pause();
	else if (paused && others.size < WINDOWS)
		connect();
}

function pause() {
	stream.close();
	stream = null;
	paused = true;
	tellWindows(false);
	drawNothingSoon();
	lost = lost || Date.now();
	document.body.classList.add("lost");
	if (status)
		drawValues();
	state("paused", "");
	notice(`This window is paused, because this browser shows the run in ${WINDOWS} other windows already, and a browser opens only a few connections to a server. Click this window to continue.`, true);
}

channel.onmessage = e => {
	others.delete(e.data.me);
	if (e.data.since)
		others.set(e.data.me, {since: e.data.since, at: performance.now()});
	shareStreams();
};
setInterval(() => {
	if (stream)
		tellWindows();
	shareStreams();
}, 1000);
for (const kind of ["focus", "pointerdown", "keydown"])
	addEventListener(kind, () => useWindow(paused));

// Shows that nothing arrives although the stream is open, because the server or the network hangs.
setInterval(() => {
	if (!stream || ended() || Date.now() - arrived < QUIET)
		return;
	showAway(arrived, `Nothing has arrived from the server since ${when(lost || arrived)}. It may be stopped or overloaded, or the network is cut.`);
	if (Date.now() - arrived > RECONNECT) {
		stream.close();
		connect();
	}
}, 1000);

// Returns the HTTP status of the server's answer, or 0 if there is none. EventSource does not report
// why it failed.
async function answer() {
	try {
		return (await fetch("status", {method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(RECONNECT)})).status;
	} catch {
		return 0;
	}
}

// Connects again, or reloads the page if the server requires another token, so that the server
// sends its form.
async function reconnect() {
	if (await answer() === 401)
		location.reload();
	else
		connect();
}

const ended = () => status && status.ending || run.end && run.end.status;
// Why --stop-at or --patience-epochs ends the run before its last epoch, if one of them does.
const stopReason = () => status && status.stop_reason || run.end && run.end.stop_reason;
const endsEarly = () => stopReason() ? `The run ends early, because ${stopReason()}.` : "";
const endWord = () => stopReason() && !FAILED[ended()] ? "ended early" : ended();

// Shows that the page has had no server since the time `since`, and hides the values that are old
// by now.
function showAway(since, text) {
	drawNothingSoon();
	lost = lost || since;
	run.away = Math.max(1, Date.now() - lost);
	document.body.classList.add("lost");
	if (status)
		drawValues();
	if (!document.hidden)
		draw();
	state("server away", "bad");
	notice(text);
}

// Called when the connection is lost: shows this, and tries to connect again after a second.
function retry() {
	if (ended()) {
		drawNothingSoon();
		if (status)
			drawStatus();
		if (!document.hidden) /* draw the last epochs, which have arrived with the end */
			draw();
		const failed = FAILED[ended()], words = [failed || endsEarly(), "The run has ended and its server has exited."];
		state(endWord(), failed ? "bad" : "good");
		if (status && status.checkpoint) /* without checkpoints, no file has the history */
			words.push("cnn-ctl report shows it again.");
		notice(words.filter(text => text).join(" "), !failed);
	} else {
		showAway(Date.now(), `No server since ${when(lost || Date.now())}. This page connects again by itself.`);
	}
	setTimeout(reconnect, 1000);
}

// While the page is hidden, it has no stream, so that no worker evaluates images for it.
document.addEventListener("visibilitychange", () => {
	if (document.hidden) {
		stream?.close();
		stream = null;
		tellWindows(false);
		if (!ended()) { /* nothing updates the title now, so it would keep an old result */
			drawNothingSoon();
			document.title = "cnn-ps";
		}
	} else if (!stream) {
		useWindow(true);
	}
});

function repaint() {
	curves.forEach(g => g.paint());
	draw();
}

$("theme").onclick = () => {
	const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
	theme(name);
	try {
		localStorage.setItem("cnnps-theme", name);
	} catch { /* the browser stores nothing for this page */
	}
	repaint();
};
matchMedia("(prefers-color-scheme: dark)").onchange = e => {
	theme(keptTheme() || (e.matches ? "dark" : "light"));
	repaint();
};
explore($("timeline-box"), $("timeline"), $("timeline-note"), () => run);
addEventListener("resize", () => draw());
curves.forEach(g => g.paint());
useWindow(true);

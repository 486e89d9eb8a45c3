"use strict";
// The board: reads the metrics of every run as they grow, and draws a chart per metric over all chosen runs.

const EVERY = 2000; // milliseconds between two looks at the runs
const COLOURS = 8;
const WIDTH = 480, HEIGHT = 240, LEFT = 52, RIGHT = 20, TOP = 10, BOTTOM = 24;
const TOGETHER = { val_loss: "loss", val_accuracy: "accuracy" }; // drawn in the chart of another, dashed
const TITLES = {
  loss: "Loss", accuracy: "Accuracy", lr: "Learning rate", gradient_norm: "Gradient norm",
  tokens_per_second: "Tokens per second", samples_per_second: "Samples per second", memory: "Memory",
};
const NO_CHART = new Set(["step", "epoch", "seconds", "time"]);

const runs = new Map(); // name → {name, offset, series: key → [{step, seconds, value}], colour, shown, info}
const element = (id) => document.getElementById(id);

// ---- numbers

function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return Number(value.toPrecision(3)).toExponential();
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

// The unit that a chart is labelled in, and what a value is multiplied with for it.
function unitOf(chart, largest) {
  if (chart === "accuracy") return { name: " (%)", factor: 100 };
  if (chart !== "memory") return { name: "", factor: 1 };
  return largest >= 2 ** 30 ? { name: " (GiB)", factor: 2 ** -30 } : { name: " (MiB)", factor: 2 ** -20 };
}

function ago(seconds) {
  if (seconds < 90) return Math.max(0, Math.round(seconds)) + " s ago";
  if (seconds < 5400) return Math.round(seconds / 60) + " min ago";
  return seconds < 172800 ? Math.round(seconds / 3600) + " h ago" : Math.round(seconds / 86400) + " d ago";
}

// Ticks at 1, 2 or 5 times a power of ten, and the range that they span.
function ticks(low, high, count) {
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    low -= room; high += room;
  }
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power, found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return { low, high, found };
}

// ---- reading

// A run that was resumed writes steps again: those from before are dropped.
function add(run, row) {
  for (const [key, value] of Object.entries(row)) {
    if (NO_CHART.has(key) || (typeof value !== "number" && value !== null)) continue;
    if (!run.series.has(key)) run.series.set(key, []);
    const points = run.series.get(key);
    while (points.length && points[points.length - 1].step >= row.step) points.pop();
    points.push({ step: row.step, seconds: row.seconds ?? 0, value });
  }
  run.step = row.step;
}

async function readMetrics(run) {
  for (;;) {
    const answer = await fetch(`/api/metrics?run=${encodeURIComponent(run.name)}&from=${run.offset}`);
    if (answer.status === 409) { // shorter than before: written anew
      run.offset = 0; run.series.clear();
      continue;
    }
    if (!answer.ok) return;
    const bytes = new Uint8Array(await answer.arrayBuffer());
    run.offset += bytes.length;
    for (const line of new TextDecoder().decode(bytes).split("\n")) {
      if (!line.trim()) continue;
      try { add(run, JSON.parse(line)); } catch { run.broken = (run.broken || 0) + 1; }
    }
    if (!bytes.length) return;
  }
}

async function look() {
  const answer = await fetch("/api/runs");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const found = await answer.json();
  element("folder").textContent = found.folder;
  let changed = false;
  const names = new Set(found.runs.map((one) => one.name));
  for (const name of runs.keys()) if (!names.has(name)) { runs.delete(name); changed = true; }
  for (const info of found.runs) {
    let run = runs.get(info.name);
    if (!run) {
      run = { name: info.name, offset: 0, series: new Map(), colour: runs.size % COLOURS, shown: runs.size < COLOURS };
      runs.set(info.name, run);
      changed = true;
    }
    run.info = info;
    if (info.bytes !== run.offset) { await readMetrics(run); changed = true; }
  }
  return changed;
}

// ---- table

function last(run, key) {
  const points = run.series.get(key);
  return points && points.length ? points[points.length - 1].value : null;
}

function least(run, key) {
  const values = (run.series.get(key) || []).map((p) => p.value).filter((v) => v !== null);
  return values.length ? values.reduce((a, b) => Math.min(a, b)) : null;
}

function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, options);
  made.append(...children);
  return made;
}

function describe(info) {
  return [info.model, info.data, info.device, info.end].filter(Boolean).join(" · ");
}

function drawTable(now) {
  const body = element("runs");
  body.replaceChildren(...[...runs.values()].map((run) => {
    const box = make("input", { type: "checkbox", checked: run.shown });
    box.addEventListener("change", () => { run.shown = box.checked; drawCharts(); });
    const name = make("td", {}, make("label", {}, box, make("span", { className: `swatch c${run.colour}` }), run.name));
    if (describe(run.info)) name.append(make("small", { textContent: describe(run.info) }));
    return make("tr", {}, name, ...[short(run.step), short(last(run, "loss")), short(least(run, "val_loss")), ago(now - run.info.modified)]
      .map((text) => make("td", { textContent: text })));
  }));
  element("none").hidden = runs.size > 0;
}

// ---- charts

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function lines(chart) { // the curves of a chart: [{run, key, points}]
  const found = [];
  for (const run of runs.values())
    for (const [key, points] of run.series)
      if (run.shown && (TOGETHER[key] || key) === chart) found.push({ run, key, points });
  return found;
}

function draw(chart) {
  const axis = element("x").value, curves = lines(chart);
  const isLog = element("log").checked && chart === "loss";
  const scale = isLog ? Math.log10 : (v) => v;
  const usable = (p) => p.value !== null && (!isLog || p.value > 0);
  const all = curves.flatMap((c) => c.points.filter(usable));
  const unit = unitOf(chart, all.reduce((most, p) => Math.max(most, p.value), 0)), title = (TITLES[chart] || chart) + unit.name;
  const figure = make("figure", {}, make("figcaption", {}, make("b", { textContent: title }), make("span")));
  if (!all.length) {
    figure.append(make("p", { className: "note", textContent: "No finite values yet." }));
    return figure;
  }
  const bounds = (values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const x = ticks(...bounds(all.map((p) => p[axis])), 6), y = ticks(...bounds(all.map((p) => scale(p.value * unit.factor))), 5);
  const right = (v) => LEFT + (v - x.low) / (x.high - x.low) * (WIDTH - LEFT - RIGHT);
  const down = (v) => HEIGHT - BOTTOM - (scale(v * unit.factor) - y.low) / (y.high - y.low) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${curves.length} curves` });
  for (const tick of y.found) {
    const value = isLog ? 10 ** tick : tick, at = down(value / unit.factor);
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }),
      shape("text", { x: LEFT - 5, y: at + 4, "text-anchor": "end" }, short(value)));
  }
  for (const tick of x.found)
    svg.append(shape("text", { x: right(tick), y: HEIGHT - 8, "text-anchor": "middle" }, short(tick)));
  for (const { run, key, points } of curves) {
    let path = "", pen = "M";
    for (const p of points) {
      if (!usable(p)) { pen = "M"; continue; }
      path += `${pen}${right(p[axis]).toFixed(1)},${down(p.value).toFixed(1)}`;
      pen = "L";
    }
    const one = points.filter(usable);
    if (one.length === 1) path += "h3";
    svg.append(shape("path", { d: path, class: `c${run.colour}${TOGETHER[key] ? " valid" : ""}` }));
  }
  follow(svg, figure.querySelector("span"), curves, unit, axis, x, right);
  figure.append(svg);
  if (curves.some((c) => TOGETHER[c.key])) figure.append(make("p", { className: "note", textContent: "solid: training, dashed: validation" }));
  return figure;
}

// The values under the pointer.
function follow(svg, text, curves, unit, axis, x, right) {
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); text.textContent = ""; });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * WIDTH;
    const wanted = x.low + (at - LEFT) / (WIDTH - LEFT - RIGHT) * (x.high - x.low);
    const near = curves.map((c) => c.points.reduce((a, b) => Math.abs(b[axis] - wanted) < Math.abs(a[axis] - wanted) ? b : a));
    const closest = near.reduce((a, b) => Math.abs(b[axis] - wanted) < Math.abs(a[axis] - wanted) ? b : a);
    const place = right(closest[axis]);
    for (const [name, value] of [["x1", place], ["x2", place], ["visibility", "visible"]]) cursor.setAttribute(name, value);
    text.textContent = `${axis} ${short(closest[axis])}: ` + curves.slice(0, 6).map((c, i) => near[i].value === null ? "–" : short(near[i].value * unit.factor)).join(", ");
  });
}

function drawCharts() {
  const keys = new Set();
  for (const run of runs.values()) if (run.shown) for (const key of run.series.keys()) keys.add(TOGETHER[key] || key);
  const first = Object.keys(TITLES);
  const place = (key) => first.includes(key) ? first.indexOf(key) : first.length;
  const sorted = [...keys].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  element("grid").replaceChildren(...sorted.map(draw));
}

// ---- life

async function turn(always) {
  const state = element("state");
  try {
    const changed = element("live").checked || always ? await look() : false;
    state.textContent = ""; state.className = "";
    if (changed || always) drawCharts();
    drawTable(Date.now() / 1000);
  } catch {
    state.textContent = "The server does not answer; trying again."; state.className = "lost";
  }
  setTimeout(turn, EVERY, false);
}

for (const id of ["x", "log"]) element(id).addEventListener("change", drawCharts);
element("settings").addEventListener("submit", (event) => event.preventDefault());
turn(true);

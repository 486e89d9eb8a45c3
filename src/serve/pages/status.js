// status.js: the status page: figures of /metrics and /slots once a second, while the page is seen.
import { element, make, request, requestJson, seconds, short, startKey, startTheme } from "/common.js";

const EVERY = 1000;
const SPAN = 300; // seconds of the chart
const HEIGHT = 220, LEFT = 48, RIGHT = 12, TOP = 12, BOTTOM = 24;
const SLOTS_SHOWN = 200;

let props = null;
let before = null;   // the counters of the last look, and when it was
const points = [];   // {at, fresh, prompt}: seconds, tokens/s; fresh null: a gap
let isAsking = false, isRefused = false, timer = null;

// ---- reading

// Prometheus' text format: lines of a name and a value; those with labels are none of ours.
function metricsOf(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^tarn_(\w+) (\S+)$/.exec(line);
    if (match) found[match[1]] = Number(match[2]);
  }
  return found;
}

// Rates since the last look. After a pause, or a restart, there is no rate but a gap.
function note(metrics) {
  const at = performance.now() / 1000, last = before;
  before = { at, metrics };
  const passed = last ? at - last.at : 0;
  const rate = (name) => (metrics[name] - last.metrics[name]) / passed;
  const isGap = !last || passed > 5 * EVERY / 1000 || metrics.steps_total < last.metrics.steps_total;
  points.push(isGap ? { at, fresh: null, prompt: null }
    : { at, fresh: rate("new_tokens_total"), prompt: rate("prompt_tokens_total") });
  while (points[0].at < at - SPAN) points.shift();
}

// ---- figures

function tile(name, value, unit, text, share) {
  const shown = make("dd", { className: "value" }, value, make("small", { textContent: unit }));
  const made = make("div", {}, make("dt", { textContent: name }), shown);
  if (share !== undefined) made.append(make("dd", {}, make("meter", { min: 0, max: 1, value: share, "aria-label": name })));
  if (text) made.append(make("dd", { className: "note", textContent: text }));
  return made;
}

const count = (value) => value.toLocaleString("en");

function drawTiles(m) {
  const used = m.kv_pages - m.kv_pages_free, prompts = m.prompt_tokens_total + m.shared_tokens_total;
  const hits = prompts ? m.shared_tokens_total / prompts : 0, last = points[points.length - 1];
  element("tiles").replaceChildren(
    tile("Running", count(m.sequences_running), ` of ${count(props.sequences)}`, "", m.sequences_running / props.sequences),
    tile("Waiting", count(m.sequences_waiting), "", `the queue takes ${count(props.queue)}`),
    tile("Tokens/s", last.fresh === null ? "–" : short(last.fresh), "", `${count(m.new_tokens_total)} new tokens in all`),
    tile("KV pages used", count(used), ` of ${count(m.kv_pages)}`, "", m.kv_pages ? used / m.kv_pages : 0),
    tile("Prefix hits", short(100 * hits), " %", `${count(m.shared_tokens_total)} of ${count(prompts)} prompt tokens`),
    tile("Preemptions", count(m.preemptions_total), "", "requests that gave up their pages"),
    tile("Answered", count(m.requests_answered_total), "", `refused ${count(m.requests_refused_total)}, gone ${count(m.requests_gone_total)}`),
    tile("Steps", count(m.steps_total), "", "of the engine"));
}

// ---- chart

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The largest value of the axis: 1, 2 or 5 times a power of ten.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

function path(name, right, down) {
  let text = "", pen = "M";
  for (const point of points) {
    if (point[name] === null) { pen = "M"; continue; }
    text += `${pen}${right(point.at).toFixed(1)},${down(point[name]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

// As wide as its figure, so that texts have one size on every screen.
function drawChart() {
  const width = Math.max(280, element("chart").clientWidth - 24);
  const now = points[points.length - 1].at, last = points[points.length - 1];
  const top = roundUp(points.reduce((most, p) => Math.max(most, p.fresh ?? 0, p.prompt ?? 0), 10));
  const right = (at) => width - RIGHT - (now - at) / SPAN * (width - LEFT - RIGHT);
  const down = (value) => HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
  const rates = `${short(last.fresh ?? NaN)} new and ${short(last.prompt ?? NaN)} prompt tokens per second`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `The last five minutes: now ${rates}` });
  for (const part of [0, .25, .5, .75, 1])
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: down(part * top), y2: down(part * top) }),
      shape("text", { x: LEFT - 6, y: down(part * top) + 4, "text-anchor": "end" }, short(part * top)));
  for (let ago = 0; ago <= SPAN; ago += width < 500 ? 120 : 60)
    svg.append(shape("text", { x: right(now - ago), y: HEIGHT - 6, "text-anchor": ago ? ago === SPAN ? "start" : "middle" : "end" },
      ago ? `−${ago / 60} min` : "now"));
  svg.append(shape("path", { class: "prompt", d: path("prompt", right, down) }), shape("path", { class: "new", d: path("fresh", right, down) }));
  element("chart").replaceChildren(make("figcaption", {},
    make("span", {}, make("i", { className: "swatch" }), `new ${short(last.fresh ?? NaN)}`),
    make("span", {}, make("i", { className: "swatch prompt" }), `prompt ${short(last.prompt ?? NaN)}`)), svg);
}

// ---- requests

function slotRow(slot) {
  const rate = slot.new_tokens > 1 && slot.decode_ms > 0 ? (slot.new_tokens - 1) / slot.decode_ms * 1000 : NaN;
  const prompt = slot.computed_tokens < slot.prompt_tokens && slot.state === "running"
    ? `${count(slot.computed_tokens)} of ${count(slot.prompt_tokens)}` : count(slot.prompt_tokens);
  const cells = [slot.id, slot.state, prompt, count(slot.cached_tokens), `${count(slot.new_tokens)} of ${count(slot.max_tokens)}`,
    seconds(slot.wait_ms), seconds(slot.prompt_ms), seconds(slot.decode_ms), short(rate)];
  return make("tr", {}, ...cells.map((text) => make("td", { textContent: text, className: slot.state })));
}

function drawSlots(slots) {
  element("slots").replaceChildren(...slots.slice(0, SLOTS_SHOWN).map(slotRow));
  element("none").textContent = !slots.length ? "No request is running or waiting."
    : slots.length > SLOTS_SHOWN ? `${count(slots.length - SLOTS_SHOWN)} more are not shown.` : "";
}

// ---- once a second

function notice(text, isBad) {
  const shown = element("notice");
  shown.className = isBad ? "notice bad" : "notice";
  shown.hidden = !text;
  if (shown.textContent !== text) shown.textContent = text;
}

async function look() {
  props ??= await requestJson("/props");
  const [metrics, slots] = await Promise.all([request("/metrics").then((r) => r.text()), requestJson("/slots")]);
  const found = metricsOf(metrics);
  element("server").textContent = `${props.model} on ${props.device}, context of ${count(props.context)} tokens, tarn ${props.version}`;
  note(found);
  drawTiles(found);
  drawChart();
  drawSlots(slots);
}

async function turn() {
  timer = null;
  isAsking = true;
  const begun = performance.now();
  try {
    await look();
    notice("", false);
  } catch (error) {
    isRefused = error.status === 401;
    if (isRefused) notice("The server needs an API key: load the page again to give one.", true);
    else if (error.status === 503) notice("The model is being loaded; this takes a moment.", false);
    else notice(error.status === 0 ? "The server does not answer; trying again." : error.message, true);
    if (error.status === 0 || error.status === 503) props = null; // the next server, or model, may be another
  }
  isAsking = false;
  plan(Math.max(0, EVERY - (performance.now() - begun)));
}

// A page that is not seen asks for nothing.
function plan(delay) {
  clearTimeout(timer);
  timer = document.hidden || isAsking || isRefused ? null : setTimeout(turn, delay);
}

document.addEventListener("visibilitychange", () => plan(0));
startTheme(element("theme"));
startKey();
plan(0);

// markdown.js: Markdown of a model as DOM nodes.
//
// The text is not trusted: it becomes text nodes and elements of a fixed set, never markup; HTML in it is shown as it
// is written. Links have absolute http, https or mailto addresses; images become links. Time is linear in the text but
// for nesting, which is bounded.
import { make } from "/common.js";

const DEPTH = 12; // of quotes, lists and emphasis; deeper ones are text
const RUN = 6;    // characters of emphasis in a row
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

// ---- inline: code, emphasis, links

const PUNCTUATION = /[\p{P}\p{S}]/u;

// The address of a link; null: not one to follow.
export function safeAddress(text) {
  try {
    const url = new URL(text); // without a base: a relative address would name this server
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch { return null; }
}

function link(address, ...children) {
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// Whether a run of * or _ may open or close emphasis, by its neighbours, as CommonMark has it.
function flanks(text, begin, end, letter) {
  const before = begin ? text[begin - 1] : " ", after = end < text.length ? text[end] : " ";
  const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  const isWord = letter === "_";
  return { opens: left && (!isWord || !right || PUNCTUATION.test(before)), closes: right && (!isWord || !left || PUNCTUATION.test(after)) };
}

const DESTINATION = /\(\s*(<[^<>\n]*>|[^\s()<]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BARE = /https?:\/\/[^\s<>()[\]"'`*]+[^\s<>()[\]"'`*.,:;!?…]/y;

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// Pieces: {node} or {letter, count, opens, closes} for runs of *, _ and ~ and {bracket, image} for [ and ![.
class Inline {
  constructor(text) {
    this.text = text;
    this.pieces = [];
    this.plain = "";
    this.brackets = []; // indices of pieces
    this.ticks = null;  // length of a run of backticks → its places
  }

  flush() {
    if (this.plain) this.pieces.push({ node: document.createTextNode(this.plain) });
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.pieces.push({ node });
  }

  // A code span: up to the next run of as many backticks. The runs are found once, and the last places come first.
  code(at) {
    const { text } = this;
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of text.matchAll(/`+/g)) {
        if (!this.ticks.has(run[0].length)) this.ticks.set(run[0].length, []);
        this.ticks.get(run[0].length).push(run.index);
      }
      for (const places of this.ticks.values()) places.reverse();
    }
    let count = 1;
    while (text[at + count] === "`") count++;
    const places = this.ticks.get(count) ?? [];
    while (places.length && places[places.length - 1] <= at) places.pop();
    if (!places.length) {
      this.plain += "`".repeat(count);
      return at + count;
    }
    const end = places[places.length - 1], inner = text.slice(at + count, end).replaceAll("\n", " ");
    const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    this.push(make("code", { textContent: isPadded ? inner.slice(1, -1) : inner }));
    return end + count;
  }

  run(at) {
    const letter = this.text[at];
    let end = at;
    while (this.text[end] === letter) end++;
    if (end - at > RUN) { // no emphasis, but a line of stars
      this.plain += this.text.slice(at, end);
      return end;
    }
    this.flush();
    this.pieces.push({ letter, count: end - at, ...flanks(this.text, at, end, letter) });
    return end;
  }

  // The end of a link's text: with an address behind it, what is between becomes the link.
  close(at) {
    const begin = this.brackets.pop();
    const found = begin === undefined ? null : match(DESTINATION, this.text, at + 1);
    const address = found && safeAddress(found[1].replace(/^<|>$/g, ""));
    if (!found) {
      this.plain += "]";
      return at + 1;
    }
    this.flush();
    const inner = emphasized(this.pieces.splice(begin).slice(1));
    if (address) {
      this.pieces.push({ node: link(address, inner.childNodes.length ? inner : address) });
      this.brackets.length = 0; // no links in links
    } else { // an address that is not followed is shown
      this.pieces.push({ node: inner }, { node: document.createTextNode(` (${found[1]})`) });
    }
    return at + 1 + found[0].length;
  }

  open(at, length) {
    this.flush();
    this.brackets.push(this.pieces.length);
    this.pieces.push({ node: document.createTextNode(this.text.slice(at, at + length)) });
    return at + length;
  }

  address(at, pattern) {
    const isWithinWord = pattern === BARE && at > 0 && /\w/.test(this.text[at - 1]);
    const found = isWithinWord ? null : match(pattern, this.text, at), text = found && (found[1] ?? found[0]);
    const address = found && safeAddress(text);
    if (!address) return 0;
    this.push(link(address, text.replace(/^mailto:/, "")));
    return at + found[0].length;
  }

  step(at) {
    const { text } = this, letter = text[at];
    if (letter === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      this.plain += text[at + 1];
      return at + 2;
    }
    if (letter === "`") return this.code(at);
    if (letter === "*" || letter === "_" || letter === "~") return this.run(at);
    if (letter === "[") return this.open(at, 1);
    if (letter === "!" && text[at + 1] === "[") return this.open(at, 2);
    if (letter === "]") return this.close(at);
    const next = letter === "<" ? this.address(at, AUTOLINK) : letter === "h" ? this.address(at, BARE) : 0;
    if (next) return next;
    if (letter === "\n") {
      const isHard = this.plain.endsWith("  ") || this.plain.endsWith("\\");
      this.plain = (this.plain.endsWith("\\") ? this.plain.slice(0, -1) : this.plain).trimEnd();
      this.push(isHard ? make("br") : document.createTextNode("\n"));
      return at + 1;
    }
    this.plain += letter;
    return at + 1;
  }

  nodes() {
    for (let at = 0; at < this.text.length;) at = this.step(at);
    this.flush();
    return emphasized(this.pieces);
  }
}

function tagOf(letter, count) {
  return letter === "~" ? "del" : count === 2 ? "strong" : "em";
}

// Matches runs of * _ ~ with a stack of frames, {letter, count, nodes} from each opener on, and nests what is between.
function emphasized(pieces) {
  const frames = [{ letter: null, nodes: [] }], open = { "*": 0, "_": 0, "~": 0 };
  const top = () => frames[frames.length - 1];
  const fall = () => { // an opener without an end is text
    const frame = frames.pop();
    open[frame.letter]--;
    top().nodes.push(document.createTextNode(frame.letter.repeat(frame.count)));
    for (const node of frame.nodes) top().nodes.push(node);
  };
  for (const piece of pieces) {
    if (piece.node) { top().nodes.push(piece.node); continue; }
    let { count } = piece;
    while (piece.closes && count > 0 && open[piece.letter] > 0) {
      while (top().letter !== piece.letter) fall();
      const frame = top();
      if (piece.letter === "~" && (frame.count !== count || count > 2)) break;
      const used = frame.count >= 2 && count >= 2 ? 2 : 1;
      const made = make(tagOf(piece.letter, used));
      for (const node of frame.nodes) made.append(node);
      frame.count -= used; count -= used;
      if (piece.letter === "~") count = frame.count = 0;
      if (frame.count > 0) { frame.nodes = [made]; continue; }
      frames.pop();
      open[piece.letter]--;
      top().nodes.push(made);
    }
    if (!count) continue;
    const opens = piece.opens && (piece.letter !== "~" || count <= 2) && frames.length < DEPTH;
    if (opens) {
      frames.push({ letter: piece.letter, count, nodes: [] });
      open[piece.letter]++;
    } else top().nodes.push(document.createTextNode(piece.letter.repeat(count)));
  }
  while (frames.length > 1) fall();
  const result = document.createDocumentFragment();
  for (const node of frames[0].nodes) result.append(node);
  return result;
}

function inline(text) {
  return new Inline(text).nodes();
}

// ---- blocks: a list of {kind, source, …} for lines

const FENCE = /^( {0,3})(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}>[ ]?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/;
const TAB = 4;

// Columns before the text of a line; a tab counts as four.
function indentOf(line) {
  let columns = 0;
  for (let i = 0; line[i] === " " || line[i] === "\t"; i++) columns += line[i] === "\t" ? TAB : 1;
  return columns;
}

// The line without that many columns of its indent.
function outdented(line, columns) {
  let i = 0;
  for (let left = columns; left > 0 && (line[i] === " " || line[i] === "\t"); i++) left -= line[i] === "\t" ? TAB : 1;
  return line.slice(i);
}

// {indent, mark, language} of a line that opens a fence; null: it does not.
function fenceOf(line) {
  const found = FENCE.exec(line), rest = found ? line.slice(found[0].length) : "";
  if (!found || (found[2][0] === "`" && rest.includes("`"))) return null;
  return { indent: found[1].length, mark: found[2], language: rest.trim().split(/\s/, 1)[0] };
}

function headingOf(line) {
  const found = HEADING.exec(line);
  if (!found) return null;
  let text = line.slice(found[0].length).trim(), end = text.length;
  while (text[end - 1] === "#") end--;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trimEnd(); // a closing sequence
  return { level: found[1].length, text };
}

function startsBlock(lines, at, depth) {
  const line = lines[at];
  return fenceOf(line) || HEADING.test(line) || RULE.test(line) || (depth < DEPTH && QUOTE.test(line)) ||
    (depth < DEPTH && ITEM.test(line) && ITEM.exec(line)[4]) || startsTable(lines, at);
}

function startsTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") &&
    cells(lines[at + 1]).every((cell) => /^:?-+:?$/.test(cell)) && cells(lines[at]).length === cells(lines[at + 1]).length;
}

// The cells of a row: cut at bars that are not escaped.
function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1"), found = [""];
  for (let i = 0; i < trimmed.length; i++) {
    if (trimmed[i] === "\\" && trimmed[i + 1] === "|") { found[found.length - 1] += "|"; i++; }
    else if (trimmed[i] === "|") found.push("");
    else found[found.length - 1] += trimmed[i];
  }
  return found.map((cell) => cell.trim());
}

function fence(lines, at) {
  const { indent, mark, language } = fenceOf(lines[at]), code = [];
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  let end = at + 1;
  for (; end < lines.length && !closing.test(lines[end]); end++) code.push(outdented(lines[end], indent));
  return { end: Math.min(end + 1, lines.length), block: { kind: "code", code: code.join("\n"), language } };
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  while (end < lines.length && (QUOTE.test(lines[end]) || (lines[end].trim() && !startsBlock(lines, end, depth))))
    inner.push(lines[end++].replace(QUOTE, ""));
  return { end, block: { kind: "quote", lines: inner } };
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((c) => (c.startsWith(":") && c.endsWith(":") ? "center" : c.endsWith(":") ? "right" : "left"));
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) rows.push(cells(lines[end++]));
  return { end, block: { kind: "table", head: cells(lines[at]), align, rows } };
}

// Items of one marker; an item's lines are those indented to its text, and lazy ones that begin nothing else.
function list(lines, at, depth) {
  const kindOf = (mark) => mark[mark.length - 1], first = ITEM.exec(lines[at]), items = [];
  let end = at, isLoose = false;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || kindOf(found[2]) !== kindOf(first[2]) || RULE.test(lines[end])) break;
    const spaces = found[3] && found[3].length <= 4 ? found[3].length : 1, width = found[1].length + found[2].length + spaces;
    const inner = [found[4] === undefined ? "" : (found[3].length > 4 ? found[3].slice(1) : "") + found[4]];
    for (end++; end < lines.length; end++) {
      const line = lines[end];
      if (!line.trim()) { // belongs to the item where it goes on
        if (end + 1 < lines.length && lines[end + 1].trim() && indentOf(lines[end + 1]) >= Math.min(width, 2)) inner.push("");
        else break;
      } else if (indentOf(line) >= Math.min(width, 2) && (indentOf(line) >= width || !ITEM.test(line) || indentOf(line) > found[1].length)) {
        inner.push(outdented(line, width));
      } else if (inner[inner.length - 1] && !startsBlock(lines, end, depth) && !ITEM.test(line)) inner.push(line.trimStart());
      else break;
    }
    items.push(inner);
    isLoose ||= inner.includes("");
    const blank = end;
    while (end < lines.length && !lines[end].trim()) end++;
    const next = end < lines.length ? ITEM.exec(lines[end]) : null;
    if (!next || kindOf(next[2]) !== kindOf(first[2])) { end = blank; break; }
  }
  const number = parseInt(first[2], 10);
  return { end, block: { kind: "list", items, isLoose, start: Number.isNaN(number) ? null : number } };
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end, depth)) end++;
  return { end, block: { kind: "paragraph", text: lines.slice(at, end).map((l) => l.trimStart()).join("\n").trimEnd() } };
}

function blockAt(lines, at, depth) {
  const line = lines[at], heading = headingOf(line);
  if (fenceOf(line)) return fence(lines, at);
  if (heading) return { end: at + 1, block: { kind: "heading", ...heading } };
  if (RULE.test(line)) return { end: at + 1, block: { kind: "rule" } };
  if (depth < DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (startsTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

// The blocks of lines, each with its source.
function blocks(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) { at++; continue; }
    const { end, block } = blockAt(lines, at, depth);
    found.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

// ---- nodes of blocks

function codeNode(block) {
  const copy = make("button", { type: "button", className: "copy", textContent: "Copy" });
  copy.addEventListener("click", () => copyText(block.code, copy));
  return make("div", { className: "code" },
    make("div", { className: "code-head" }, make("span", { textContent: block.language || "text" }), copy),
    make("pre", { tabIndex: 0, role: "region", "aria-label": `Code, ${block.language || "text"}` }, make("code", { textContent: block.code })));
}

function listNode(block, depth) {
  const made = make(block.start === null ? "ul" : "ol");
  if (block.start !== null && block.start !== 1) made.start = block.start;
  for (const lines of block.items) {
    const task = /^\[([ xX])\][ \t]+/.exec(lines[0]), item = make("li");
    if (task) {
      lines[0] = lines[0].slice(task[0].length);
      item.className = "task";
      item.append(make("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "task" }), " ");
    }
    for (const inner of blocks(lines, depth + 1))
      item.append(inner.kind === "paragraph" && !block.isLoose ? inline(inner.text) : node(inner, depth + 1));
    made.append(item);
  }
  return made;
}

function tableNode(block) {
  const row = (texts, tag) => make("tr", {}, ...block.align.map((side, i) =>
    make(tag, { className: side, ...(tag === "th" ? { scope: "col" } : {}) }, inline(texts[i] ?? ""))));
  return make("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" },
    make("table", {}, make("thead", {}, row(block.head, "th")), make("tbody", {}, ...block.rows.map((r) => row(r, "td")))));
}

function node(block, depth) {
  switch (block.kind) {
    case "code": return codeNode(block);
    case "heading": return make(`h${Math.min(6, block.level + 2)}`, {}, inline(block.text)); // below the page's own
    case "rule": return make("hr");
    case "quote": return make("blockquote", {}, ...blocks(block.lines, depth + 1).map((b) => node(b, depth + 1)));
    case "list": return listNode(block, depth);
    case "table": return tableNode(block);
    default: return make("p", {}, inline(block.text));
  }
}

export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Shows a text in an element. Blocks whose source is as it was keep their nodes, so that a text that grows is drawn at
// its end alone, and what is selected stays so.
export function showMarkdown(target, text) {
  const found = blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0), drawn = target.drawn ?? [];
  let same = 0;
  while (same < drawn.length && same < found.length && drawn[same] === found[same].source) same++;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of found.slice(same)) target.append(node(block, 0));
  target.drawn = found.map((b) => b.source);
}

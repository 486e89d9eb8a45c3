// conversations.js: the conversations of this browser, one entry of localStorage each, and their export and import.
//
// A conversation: {id, title, isNamed, created, updated, system, messages}. A message: {role, content} and, of an
// answer, {thinking, stats, error}.
import { readStored, writeStored } from "/common.js";

const PREFIX = "tarn.conversation.";
const FORMAT = "tarn-conversations", VERSION = 1;
const TITLE_MAX = 60;

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system) {
  const now = Date.now();
  return { id: newId(), title: "New conversation", isNamed: false, created: now, updated: now, system, messages: [] };
}

// Named after its first message, until the user names it.
export function titleFor(conversation) {
  const first = conversation.messages.find((m) => m.role === "user")?.content.trim().split("\n")[0] ?? "";
  if (conversation.isNamed || !first) return conversation.title;
  const letters = Array.from(first);
  return letters.length > TITLE_MAX ? letters.slice(0, TITLE_MAX - 1).join("") + "…" : first;
}

// ---- checks: an entry of storage, or a file, may hold anything

const isText = (value) => typeof value === "string";
const isTime = (value) => Number.isFinite(value) && value >= 0;

function checkedStats(stats) {
  if (!stats || typeof stats !== "object") return null;
  const number = (value) => (Number.isFinite(value) ? value : null);
  return {
    tokens: number(stats.tokens) ?? 0, isExact: stats.isExact === true, promptTokens: number(stats.promptTokens),
    firstMs: number(stats.firstMs), tokensPerSecond: number(stats.tokensPerSecond),
    finish: isText(stats.finish) ? stats.finish : null,
  };
}

function checkedMessage(message) {
  const isMessage = message && ["user", "assistant"].includes(message.role) && isText(message.content);
  if (!isMessage) throw new Error("a message is not one of user or assistant with a text");
  if (message.role === "user") return { role: "user", content: message.content };
  return {
    role: "assistant", content: message.content, thinking: isText(message.thinking) ? message.thinking : "",
    stats: checkedStats(message.stats), error: isText(message.error) ? message.error : null,
  };
}

function checked(value, id) {
  if (!value || typeof value !== "object" || !Array.isArray(value.messages)) throw new Error("a conversation has no messages");
  const created = isTime(value.created) ? value.created : Date.now();
  return {
    id, created, updated: isTime(value.updated) ? value.updated : created,
    title: isText(value.title) && value.title.trim() ? value.title.slice(0, 200) : "Conversation",
    isNamed: value.isNamed === true, system: isText(value.system) ? value.system : "",
    messages: value.messages.map(checkedMessage),
  };
}

// ---- storage

function names() {
  try { return Object.keys(localStorage).filter((name) => name.startsWith(PREFIX)); } catch { return []; }
}

export function readConversation(id) {
  try { return checked(JSON.parse(readStored("localStorage", PREFIX + id)), id); } catch { return null; }
}

// All of them, the latest first. An entry that cannot be read is left alone.
export function readConversations() {
  return names().map((name) => readConversation(name.slice(PREFIX.length))).filter(Boolean)
    .sort((a, b) => b.updated - a.updated);
}

// False: the browser has no space for it.
export function saveConversation(conversation) {
  return writeStored("localStorage", PREFIX + conversation.id, JSON.stringify(conversation));
}

export function removeConversation(id) {
  return writeStored("localStorage", PREFIX + id, null);
}

// Whether a `storage` event, of another tab, is about conversations.
export function concerns(event) {
  return event.key === null || event.key.startsWith(PREFIX);
}

// ---- files

export function exported() {
  const conversations = readConversations().map(({ id, ...rest }) => rest);
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 2) + "\n";
}

// Adds the conversations of a file beside those that are there, all or none. Returns how many; throws a sentence.
export function importFrom(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error("This file is not JSON."); }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations))
    throw new Error("This file is no export of conversations.");
  if (file.version !== VERSION) throw new Error(`This export has version ${Number(file.version)}; version ${VERSION} is read.`);
  let found;
  try {
    found = file.conversations.map((one) => checked(one, newId()));
  } catch (error) {
    throw new Error(`This export is damaged: ${error.message}.`);
  }
  const saved = [];
  for (const one of found) {
    if (saveConversation(one)) { saved.push(one.id); continue; }
    saved.forEach(removeConversation);
    throw new Error("The browser has no space for these conversations.");
  }
  return found.length;
}

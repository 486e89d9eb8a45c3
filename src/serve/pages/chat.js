// chat.js: the chat page: its conversations, their messages, settings, and one answer at a time.
import { askForKey, element, make, readStored, request, requestJson, startKey, startTheme, writeStored } from "/common.js";
import * as store from "/conversations.js";
import { messageNode, updateAnswer } from "/messages.js";
import { answer } from "/stream.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const COMPLETION_TOKENS = 256; // by default; the API's own 16 are few for a page
const ANNOUNCED = 2000;        // characters of an answer that are read out
const AGAIN_MS = 1000;

const server = { isReady: false, isChat: true, context: 0 };
let settings = readSettings();
let current = null;   // the conversation shown
let running = null;   // {conversation, message, article, abort} of the answer that is streamed

// ---- notices

function notice(text, isBad = false) {
  const shown = element("notice");
  shown.className = isBad ? "notice bad" : "notice";
  shown.hidden = !text;
  if (shown.textContent !== text) shown.textContent = text;
}

function standingNotice() {
  if (server.isReady && !server.isChat)
    notice("This model has no chat template, so it cannot chat. It continues texts: what you write and what it answers are joined, and the model goes on from there.");
  else notice("");
}

function save(conversation) {
  conversation.updated = Date.now();
  if (!store.saveConversation(conversation))
    notice("The browser has no space for this conversation: delete others, or export them.", true);
}

// ---- the server

async function look() {
  try {
    const models = await requestJson("/v1/models"), props = await requestJson("/props");
    const names = models.data.map((m) => m.id), chosen = element("model").value;
    server.usable = models.data.filter((m) => m.loaded).map((m) => m.id); // the model and its adapters
    element("model").replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
    element("model").value = server.usable.includes(chosen) ? chosen : props.model;
    element("model").disabled = names.length < 2;
    element("model").title = element("model").value;
    Object.assign(server, { isReady: true, isChat: props.chat_template, context: props.context });
    standingNotice();
    describe();
    drawMessages();
  } catch (error) {
    if (error.status === 401) notice("The server needs an API key: give one in the settings.", true);
    else if (error.status === 503) notice("The model is being loaded; this takes a moment.");
    else notice(error.status === 0 ? "The server does not answer; trying again." : error.message, true);
    if (error.status !== 401) setTimeout(look, AGAIN_MS);
  }
  setState();
}

// One model is loaded at a time, for all clients of the server: another one takes its place. Its adapters are there.
async function changeModel(name) {
  if (server.usable.includes(name)) {
    element("model").title = name;
    return;
  }
  server.isReady = false;
  element("model").disabled = true;
  setState();
  notice(`${name} is loaded as soon as running answers have ended.`);
  let problem = "";
  try {
    await request("/admin/load", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model: name }),
    });
  } catch (error) { problem = error.message; }
  await look();
  if (problem && server.isReady) notice(problem, true);
}

// What depends on whether the model chats.
function describe() {
  element("input").placeholder = server.isChat ? "Message" : "A text to continue";
  element("max_tokens").placeholder = server.isChat ? "context" : String(completionTokens());
  element("system").disabled = !server.isChat;
  element("system-hint").textContent = server.isChat ? "" : "A model without a chat template has no system prompt.";
  drawEmpty();
}

function completionTokens() {
  return Math.max(1, Math.min(COMPLETION_TOKENS, Math.floor(server.context / 2)));
}

// ---- settings

function readSettings() {
  try {
    const read = JSON.parse(readStored("localStorage", "tarn.settings")) ?? {};
    return Object.fromEntries(NUMBERS.filter((n) => Number.isFinite(read[n])).map((n) => [n, read[n]]));
  } catch { return {}; }
}

function openSettings() {
  for (const name of NUMBERS) element(name).value = settings[name] ?? "";
  element("system").value = current.system;
  element("settings-error").textContent = "";
  element("settings").showModal();
}

// Keeps what the fields say. False: one of them is wrong, and a sentence says which.
function takeSettings() {
  const wrong = NUMBERS.map(element).find((field) => !field.validity.valid);
  if (wrong) {
    const { min, max, step } = wrong, isInt = step === "1";
    element("settings-error").textContent =
      `${wrong.parentElement.firstChild.textContent.trim()} must be ${isInt ? "an integer" : "a number"} from ${min} to ${max}.`;
    wrong.focus();
    return false;
  }
  settings = Object.fromEntries(NUMBERS.filter((n) => element(n).value !== "").map((n) => [n, Number(element(n).value)]));
  writeStored("localStorage", "tarn.settings", JSON.stringify(settings));
  if (element("system").value !== current.system) {
    current.system = element("system").value;
    writeStored("localStorage", "tarn.system", current.system);
    if (current.messages.length) save(current);
  }
  return true;
}

// ---- the list of conversations

function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
}

function tool(label, path, run) {
  const button = make("button", { type: "button", className: "tool", title: label.split(":")[0], "aria-label": label }, icon(path));
  button.addEventListener("click", run);
  return button;
}

function listItem(conversation) {
  const title = store.titleFor(conversation), item = make("li");
  const pick = make("button", { type: "button", className: "pick", textContent: title, title });
  if (conversation.id === current.id) {
    item.className = "current";
    pick.setAttribute("aria-current", "true");
  }
  pick.addEventListener("click", () => { show(store.readConversation(conversation.id) ?? conversation); closeSide(); });
  item.append(pick,
    tool(`Rename: ${title}`, "M4 20h4L19 9l-4-4L4 16zM13 7l4 4", () => rename(item, conversation)),
    tool(`Delete: ${title}`, "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13", () => remove(conversation)));
  return item;
}

function drawList() {
  element("list").replaceChildren(...store.readConversations().map(listItem));
  const title = current.messages.length || current.isNamed ? store.titleFor(current) : "New conversation";
  element("title").textContent = title;
  document.title = current.messages.length ? `${title} · tarn` : "tarn";
}

// The conversation as it is in memory where it is the one shown or answered, else as it is stored.
function latest(id) {
  if (current.id === id) return current;
  return running?.conversation.id === id ? running.conversation : store.readConversation(id);
}

function rename(item, { id }) {
  const field = make("input", { value: store.titleFor(latest(id)), maxLength: 200, "aria-label": "Title of the conversation" });
  let isDone = false;
  const finish = (keeps) => {
    if (isDone) return;
    isDone = true;
    const conversation = latest(id);
    if (keeps && field.value.trim() && conversation) {
      Object.assign(conversation, { title: field.value.trim(), isNamed: true });
      store.saveConversation(conversation);
    }
    drawList();
    element("list").querySelector(".current .pick")?.focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) finish(true);
    if (event.key === "Escape") { event.stopPropagation(); finish(false); }
  });
  field.addEventListener("blur", () => finish(true));
  item.replaceChildren(field);
  field.select();
}

function remove(conversation) {
  const dialog = element("remove-dialog");
  element("remove-text").textContent = `“${store.titleFor(conversation)}” is removed from this browser.`;
  dialog.returnValue = "";
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "remove") return;
    if (running?.conversation.id === conversation.id) {
      running.isRemoved = true;
      running.abort.abort();
    }
    store.removeConversation(conversation.id);
    if (current.id === conversation.id) show(store.newConversation(readStored("localStorage", "tarn.system") ?? ""));
    else drawList();
  }, { once: true });
  dialog.showModal();
}

function exportAll() {
  const address = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
  const link = make("a", { href: address, download: `tarn-conversations-${new Date().toISOString().slice(0, 10)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function importFile(input) {
  const [file] = input.files;
  input.value = "";
  if (!file) return;
  try {
    const count = store.importFrom(await file.text());
    drawList();
    notice(`${count} ${count === 1 ? "conversation is" : "conversations are"} imported.`);
  } catch (error) {
    notice(error.message, true);
  }
}

// ---- messages

const on = {
  edit(index, text) {
    if (running) return;
    current.messages.length = index;
    ask(text);
  },
  regenerate(index) {
    if (running) return;
    current.messages.length = index;
    begin();
  },
};

function show(conversation) {
  current = running?.conversation.id === conversation.id ? running.conversation : conversation;
  drawMessages();
  drawList();
  setState();
  stick(true);
  if (window.matchMedia("(hover: hover)").matches) element("input").focus();
}

function drawEmpty() {
  element("empty").textContent = current.messages.length || !server.isReady ? ""
    : server.isChat ? "Ask something." : "Write the beginning of a text.";
}

// Messages that were shown keep their nodes, and with them thoughts that the user has opened.
function drawMessages() {
  const shown = element("messages").children, { isChat } = server;
  const nodes = current.messages.map((message, index) => {
    const isStreaming = running?.message === message, old = shown[index];
    if (!isStreaming && old?.message === message && old.isChat === isChat) return old;
    const node = Object.assign(messageNode(message, index, on, { isStreaming, isChat }), { message, isChat });
    if (isStreaming) running.article = node;
    return node;
  });
  element("messages").replaceChildren(...nodes);
  drawEmpty();
}

// Follows the end of the text, unless the user has scrolled away from it.
let isStuck = true;

function stick(always = false) {
  const box = element("scroll");
  if (always) isStuck = true;
  if (isStuck) box.scrollTop = box.scrollHeight;
}

function announce(text) {
  element("announce").textContent = text;
}

// ---- answers

function setState() {
  const isHere = running?.conversation.id === current?.id;
  element("send").hidden = isHere && running !== null;
  element("stop").hidden = !(isHere && running !== null);
  element("send").disabled = !server.isReady || running !== null;
}

// The conversation as the API takes it: messages, or one text. A message whose answer failed is joined with the next
// one, as many templates take turns alone.
function promptOf(conversation) {
  const before = conversation.messages.slice(0, -1);
  if (!server.isChat) return before.map((m) => m.content).join("");
  const sent = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const { role, content } of before.filter((m) => m.role === "user" || m.content)) {
    const last = sent[sent.length - 1];
    if (last?.role === role) last.content += `\n\n${content}`;
    else sent.push({ role, content });
  }
  return sent;
}

function sampling() {
  return server.isChat ? settings : { max_tokens: completionTokens(), ...settings };
}

function ask(text) {
  current.messages.push({ role: "user", content: text });
  begin();
}

// Draws at most once a frame; a hidden page has no frames and is drawn at the end.
function drawer(run) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      if (running !== run || current !== run.conversation) return;
      updateAnswer(run.article, run.message, { isStreaming: true, isChat: server.isChat });
      stick();
    });
  };
}

async function begin() {
  const message = { role: "assistant", content: "", thinking: "", stats: null, error: null };
  const run = { conversation: current, message, article: null, abort: new AbortController(), isRemoved: false };
  current.messages.push(message);
  running = run;
  drawMessages();
  setState();
  stick(true);
  save(run.conversation);
  drawList();
  announce("The model answers.");
  const draw = drawer(run);
  try {
    message.stats = await answer({
      model: element("model").value, prompt: promptOf(run.conversation), settings: sampling(), isChat: server.isChat,
      signal: run.abort.signal,
      onPart(text, thinking, stats) {
        message.content += text;
        message.thinking += thinking;
        message.stats = stats;
        draw();
      },
    });
  } catch (error) {
    message.stats = error.stats ?? null;
    if (error.name === "AbortError") message.stats = { ...message.stats, finish: "stopped" };
    else message.error = error.message;
    if (error.code === "model_not_loaded") look(); // somebody has changed it
  }
  end(run);
}

function end(run) {
  const { conversation, message } = run;
  running = null;
  if (!run.isRemoved) save(conversation);
  if (current === conversation) {
    updateAnswer(run.article, message, { isStreaming: false, isChat: server.isChat });
    stick();
    const text = run.article.querySelector(".content").textContent;
    announce(message.error ? "" : text.length > ANNOUNCED ? `${text.slice(0, ANNOUNCED)} … The answer is longer.` : text);
  }
  drawList();
  setState();
}

function stop() {
  running?.abort.abort();
}

function submit() {
  const field = element("input"), text = field.value;
  if (!text.trim() || running || !server.isReady) return;
  field.value = "";
  fitField();
  ask(server.isChat ? text.trim() : text);
}

function fitField() {
  const field = element("input");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

// ---- the side of a phone

function openSide() {
  element("side").classList.add("open");
  element("shade").hidden = false;
  element("side-open").setAttribute("aria-expanded", "true");
  element("side-close").focus();
}

function closeSide() {
  if (!element("side").classList.contains("open")) return;
  element("side").classList.remove("open");
  element("shade").hidden = true;
  element("side-open").setAttribute("aria-expanded", "false");
  element("side-open").focus();
}

// ---- start

function listen() {
  const click = (id, run) => element(id).addEventListener("click", run);
  click("new", () => { show(store.newConversation(readStored("localStorage", "tarn.system") ?? "")); closeSide(); });
  click("side-open", openSide);
  click("side-close", closeSide);
  click("shade", closeSide);
  click("export", exportAll);
  click("import", () => element("import-file").click());
  element("import-file").addEventListener("change", (event) => importFile(event.target));
  click("stop", stop);
  click("settings-open", openSettings);
  click("settings-cancel", () => element("settings").close());
  click("settings-reset", () => NUMBERS.forEach((name) => { element(name).value = ""; }));
  click("key-open", async () => { if (await askForKey(false)) look(); });
  element("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (takeSettings()) element("settings").close();
  });
  element("model").addEventListener("change", (event) => changeModel(event.target.value));
  element("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  element("input").addEventListener("input", fitField);
  element("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  });
  element("scroll").addEventListener("scroll", (event) => {
    const box = event.target;
    isStuck = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (element("side").classList.contains("open")) closeSide();
    else stop();
  });
  window.addEventListener("storage", (event) => { if (store.concerns(event)) drawList(); });
  window.addEventListener("pagehide", () => { if (running && !running.isRemoved) store.saveConversation(running.conversation); });
}

startTheme(element("theme"));
startKey();
current = store.newConversation(readStored("localStorage", "tarn.system") ?? "");
listen();
show(store.readConversations()[0] ?? current);
look();

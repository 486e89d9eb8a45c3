// common.js: what the pages share: elements, the theme, the API key, requests and the sentences of their errors.

export const element = (id) => document.getElementById(id);

// An element with properties and children; strings become text nodes, never markup.
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

// ---- storage: a browser may refuse it altogether

export function readStored(storage, name) {
  try { return window[storage].getItem(name); } catch { return null; }
}

// False: there is no space, or no storage.
export function writeStored(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, value);
    return true;
  } catch { return false; }
}

// ---- theme: the system's, or the one that the switch has chosen

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme(button) {
  const chosen = readStored("localStorage", "tarn.theme");
  const isDark = chosen ? chosen === "dark" : dark.matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  button.setAttribute("aria-label", isDark ? "Use the light theme" : "Use the dark theme");
  button.title = button.getAttribute("aria-label");
}

export function startTheme(button) {
  showTheme(button);
  dark.addEventListener("change", () => showTheme(button));
  window.addEventListener("storage", (event) => { if (event.key === "tarn.theme") showTheme(button); });
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    writeStored("localStorage", "tarn.theme", next === (dark.matches ? "dark" : "light") ? null : next);
    document.documentElement.dataset.theme = next;
    showTheme(button);
  });
}

// ---- the key: kept for the tab, or for the browser; sent in a header and never put into an address

let key = readStored("sessionStorage", "tarn.key") || readStored("localStorage", "tarn.key") || "";

function keepKey(value, remembers) {
  key = value;
  writeStored("sessionStorage", "tarn.key", value || null);
  writeStored("localStorage", "tarn.key", remembers && value ? value : null);
}

let asking = null; // one question at a time, however many requests wait for it

// Asks for a key in a dialog. True: one was given.
export function askForKey(isWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = element("key-dialog"), field = element("key"), remember = element("key-remember");
    element("key-error").textContent = isWrong ? "The server refuses this key." : "";
    field.value = "";
    remember.checked = readStored("localStorage", "tarn.key") !== null;
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      const given = dialog.returnValue === "use" ? field.value.trim() : "";
      field.value = "";
      if (given) keepKey(given, remember.checked);
      resolve(given !== "");
    }, { once: true });
    dialog.showModal();
    field.focus();
  });
  return asking;
}

export function startKey() {
  element("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (element("key").value.trim()) element("key-dialog").close("use");
  });
  element("key-cancel").addEventListener("click", () => element("key-dialog").close(""));
}

// ---- requests

export class RequestError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// A sentence: what the server says, with a capital letter, unless a field's name begins it, and a full stop.
export function sentence(text) {
  const trimmed = String(text).trim(), isWord = /^[a-z]+(?![\w.])/.test(trimmed);
  return (isWord ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed) + (/[.!?…]$/.test(trimmed) ? "" : ".");
}

async function errorOf(response) {
  let said = null;
  try { said = (await response.json()).error; } catch { /* not of the server itself */ }
  const message = said?.message || `the server answers with status ${response.status}`;
  return new RequestError(sentence(message), response.status, said?.code ?? null);
}

// The response of the server; its refusals are thrown as a RequestError. Asks for a key where one is needed.
export async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers }, used = key;
    if (used) headers.Authorization = `Bearer ${used}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server does not answer.", 0, null);
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    if (used === key && !(await askForKey(used !== ""))) throw new RequestError("The server needs an API key.", 401, null);
  }
}

export async function requestJson(path) {
  return (await request(path)).json();
}

// ---- numbers

export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10) return String(Number(value.toFixed(2)));
  return Math.abs(value) < 100 ? String(Number(value.toFixed(1))) : Math.round(value).toLocaleString("en");
}

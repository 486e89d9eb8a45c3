// messages.js: the messages of a conversation as elements.
import { make, seconds, short } from "/common.js";
import { copyText, showMarkdown } from "/markdown.js";

const ENDS = { length: "ended at the token limit", stopped: "stopped", tool_calls: "ended with a tool call" };

// "42 tokens · 31.5 tokens/s · first token after 120 ms · stopped"
export function statsText(stats) {
  if (!stats) return "";
  const about = stats.isExact ? "" : "about ", parts = [];
  if (stats.tokens) parts.push(`${about}${stats.tokens.toLocaleString("en")} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.tokensPerSecond !== null) parts.push(`${short(stats.tokensPerSecond)} tokens/s`);
  if (stats.firstMs !== null) parts.push(`first token after ${seconds(stats.firstMs)}`);
  if (ENDS[stats.finish]) parts.push(ENDS[stats.finish]);
  return parts.join(" · ");
}

function action(label, run) {
  const button = make("button", { type: "button", className: "action", textContent: label });
  button.addEventListener("click", () => run(button));
  return button;
}

function userNode(message, index, on) {
  const article = make("article", { className: "message user", "aria-label": "You" });
  article.append(make("div", { className: "bubble", textContent: message.content }),
    make("div", { className: "actions" }, action("Copy", (button) => copyText(message.content, button)),
      action("Edit", () => edit(article, message, index, on))));
  return article;
}

// The message as a field, in its place.
function edit(article, message, index, on) {
  const field = make("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1),
    "aria-label": "Edit the message" });
  const kept = [...article.childNodes];
  const leave = () => {
    article.replaceChildren(...kept);
    article.querySelector(".actions button:last-child").focus();
  };
  const send = () => { if (field.value.trim()) on.edit(index, field.value); };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); leave(); }
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  article.replaceChildren(make("div", { className: "edit" }, field,
    make("div", { className: "actions shown" }, action("Send", send), action("Cancel", leave))));
  field.focus();
}

function answerNode(message, index, on) {
  const article = make("article", { className: "message assistant", "aria-label": "Answer" });
  article.append(
    make("details", { className: "thinking", hidden: true }, make("summary", {}), make("div", { className: "markdown" })),
    make("div", { className: "content" }),
    make("p", { className: "error", role: "alert", hidden: true }),
    make("div", { className: "actions" }, action("Copy", (button) => copyText(message.content, button)),
      action("Regenerate", () => on.regenerate(index)), make("span", { className: "stats" })));
  return article;
}

// Shows what an answer has by now. Plain completions are no Markdown: their text is shown as it is.
export function updateAnswer(article, message, { isStreaming, isChat }) {
  const thinking = article.querySelector(".thinking"), content = article.querySelector(".content");
  const error = article.querySelector(".error");
  thinking.hidden = !message.thinking;
  if (message.thinking) {
    thinking.querySelector("summary").textContent = isStreaming && !message.content ? "Thinking…" : "Thoughts";
    showMarkdown(thinking.querySelector("div"), message.thinking);
  }
  content.className = isChat ? "content markdown" : "content plain";
  if (isChat) showMarkdown(content, message.content);
  else content.textContent = message.content;
  article.classList.toggle("streaming", isStreaming);
  article.classList.toggle("waiting", isStreaming && !message.content && !message.thinking);
  article.setAttribute("aria-busy", String(isStreaming));
  error.hidden = !message.error;
  if (error.textContent !== (message.error ?? "")) error.textContent = message.error ?? "";
  article.querySelector(".stats").textContent = statsText(message.stats);
}

export function messageNode(message, index, on, options) {
  if (message.role === "user") return userNode(message, index, on);
  const article = answerNode(message, index, on);
  updateAnswer(article, message, options);
  return article;
}

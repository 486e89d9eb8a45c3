// stream.js: one answer of the server, as a stream of events read by fetch.
import { request, RequestError, sentence } from "/common.js";

// The data of each event. An event may be cut anywhere, inside a character too.
async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function body(model, prompt, settings, isChat) {
  const sent = { model, stream: true, stream_options: { include_usage: true }, ...settings };
  if (isChat) sent.messages = prompt;
  else sent.prompt = prompt;
  return JSON.stringify(sent);
}

// What the events of an answer add up to.
class Tally {
  constructor() {
    this.begun = performance.now();
    this.first = this.last = null;
    this.parts = 0;
    this.usage = null;
    this.finish = null;
  }

  token() {
    this.last = performance.now();
    this.first ??= this.last;
    this.parts++;
  }

  // Tokens are counted by the server; those of an answer that was stopped are its parts, about one for each token.
  stats() {
    const tokens = this.usage?.completion_tokens ?? this.parts, span = this.last - this.first;
    return {
      tokens,
      isExact: this.usage !== null,
      promptTokens: this.usage?.prompt_tokens ?? null,
      firstMs: this.first === null ? null : this.first - this.begun,
      tokensPerSecond: tokens > 1 && span > 0 ? (tokens - 1) / span * 1000 : null,
      finish: this.finish,
    };
  }
}

// Reads an answer; `onPart(text, thinking, stats)` is called for each event that has some. Returns the stats.
// A refusal, or an error inside the stream, is thrown; so is an AbortError, with the stats so far.
export async function answer({ model, prompt, settings, isChat, signal, onPart }) {
  const tally = new Tally();
  try {
    const response = await request(isChat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: body(model, prompt, settings, isChat), signal,
    });
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return tally.stats();
      const event = JSON.parse(data);
      if (event.error) throw new RequestError(sentence(event.error.message), 200, event.error.code ?? null);
      tally.usage = event.usage ?? tally.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      tally.finish = choice.finish_reason ?? tally.finish;
      const text = (isChat ? choice.delta?.content : choice.text) ?? "", thinking = choice.delta?.reasoning_content ?? "";
      if (!text && !thinking) continue;
      tally.token();
      onPart(text, thinking, tally.stats());
    }
  } catch (error) {
    error.stats = tally.stats();
    if (error.name === "AbortError" || error instanceof RequestError) throw error;
    throw Object.assign(new RequestError("The connection ended before the answer did.", 0, null), { stats: error.stats });
  }
  throw Object.assign(new RequestError("The connection ended before the answer did.", 0, null), { stats: tally.stats() });
}

#!/usr/bin/env python3
"""The pages of `tarn serve` in Chromium, through Playwright: a chat with Markdown of every kind and with texts that
attack the page, stop, edit, regenerate, settings, conversations, export and import, errors, a key, a model without a
chat template, several models, phones, keyboard, theme, and the status under load. The model is a random Llama; a
grammar, added to the page's request on its way, makes it write what a test needs. TARN_COMMAND names the command,
CHROMIUM the browser (/usr/bin/chromium).

    page_client.py [--pictures FOLDER]

With --pictures it writes screenshots, too. Exit status 77: Playwright, the browser or the server is missing."""
import argparse
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    skip("the playwright package is missing")
if not os.access(CHROMIUM, os.X_OK):
    skip(f"there is no browser at {CHROMIUM} (Debian's chromium brings it)")

import random_model

KEY = "sk-of-the-test"
ALIAS = "<img src=x onerror=\"document.title='hacked'\">"
CONTEXT = 8192
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri "
          "'none'; form-action 'none'; frame-ancestors 'none'")
MARKDOWN = """# Title

Some *light*, **strong** and ~~old~~ text, `a < b`, snake_case_name and 2 * 3 * 4.

1. one
2. two
   - inner

- [x] done

> quoted

| name | size |
|:-----|-----:|
| a    | **1** |

```python
def f(x):
\treturn "<b>" * x
```

[site](https://example.org/a_(b)), https://example.org/c. and <mailto:a@example.org>
"""
ATTACK = """<script>document.title='hacked'</script><img src=x onerror="document.title='hacked'">

[a](javascript:document.title='hacked') [b](data:text/html,x) [c](/v1/models) ![d](https://example.org/x.png)

[e](  JavaScript:alert(1)) <javascript:alert(1)> [f](https://example.org/"onclick="x)

```"><script>document.title='hacked'</script>
</code></pre><script>document.title='hacked'</script>
```
"""


# ---- the server and the browser


@contextlib.contextmanager
def served(folder, *options, others=()):
    """The address of a server of the model, and of others."""
    with open(folder / "errors", "w") as errors:
        command = [os.environ["TARN_COMMAND"], "serve", folder, *others, "--port", "0", "--device", "cpu", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        first = server.stdout.readline()
        if not first or not server.stdout.readline():
            said = (folder / "errors").read_text()
            if "this build has no HTTP server" in said:
                skip(said.strip())
            raise AssertionError(f"the server did not start: {said}")
        yield first.split()[0], server
    finally:
        server.kill()
        server.wait()


class Tab:
    """A page of a context of its own, which must not complain in its console, nor ask any other server."""

    def __init__(self, browser, url, **context):
        self.context = browser.new_context(base_url=url, **context)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.url, self.complaints, self.asked, self.sent = url, [], [], []
        self.expected = ()  # texts of complaints that a test provokes
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", self.note)

    def note(self, request):
        self.asked.append(request.url)
        if request.method == "POST":
            self.sent.append(json.loads(request.post_data))

    def write(self, text):
        """Makes the next answers have this text; None: random letters until the context ends, for seconds."""
        letters = {str(i): 100 for i in [*range(97, 123), 32]}
        added = ({"ignore_eos": True, "logit_bias": letters} if text is None else
                 {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"})

        def change(route):
            route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | added))

        self.page.unroute("**/completions")
        self.page.route("**/completions", change)

    def send(self, text):
        expect(self.page.locator("#send")).to_be_enabled()  # the page knows its model
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def answers(self):
        return self.page.get_by_role("article", name="Answer")

    def finish(self, count):
        """The answers are there, and complete."""
        expect(self.answers()).to_have_count(count)
        expect(self.page.locator(".streaming")).to_have_count(0, timeout=30000)

    def close(self):
        wrong = [c for c in self.complaints if not any(e in c for e in self.expected)]
        assert not wrong, f"the console says: {wrong}"
        foreign = [u for u in self.asked if not u.startswith((self.url, "data:", "blob:" + self.url))]
        assert not foreign, f"asked another server: {foreign}"
        assert not any(KEY in u for u in self.asked), "the key is in an address"
        self.context.close()


# ---- tests of the chat


def headers_and_policy(tab):
    answer = tab.page.goto("/")
    assert answer.headers["content-security-policy"] == POLICY, answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    tab.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'hacked'";
        document.body.append(script);
        const image = document.createElement("p");
        image.innerHTML = "<img src='https://example.org/x.png' onerror='document.title=1'>";
        document.body.append(image);
    }""")
    tab.page.wait_for_timeout(100)
    assert tab.page.title() == "tarn", tab.page.title()
    refused = [c for c in tab.complaints if "Content Security Policy" in c]
    assert len(refused) >= 2, tab.complaints
    tab.complaints.clear()
    tab.asked.remove("https://example.org/x.png")  # the browser has refused it, but reports it


def markdown_is_shown(tab):
    page = tab.page
    page.goto("/")
    tab.write(MARKDOWN)
    tab.send("Hello")
    tab.finish(1)
    answer = tab.answers().locator(".content")
    expect(answer.locator("h3")).to_have_text("Title")
    expect(answer.locator("em")).to_have_text("light")
    expect(answer.locator("p strong")).to_have_text("strong")
    expect(answer.locator("del")).to_have_text("old")
    expect(answer.locator("p code")).to_have_text("a < b")
    expect(answer.locator("p").first).to_contain_text("snake_case_name and 2 * 3 * 4.")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol ul > li")).to_have_text("inner")
    expect(answer.locator("li input:checked")).to_have_count(1)
    expect(answer.locator("blockquote")).to_have_text("quoted")
    expect(answer.locator("td")).to_have_text(["a", "1"])
    expect(answer.locator("td").nth(1)).to_have_class("right")
    expect(answer.locator("pre code")).to_have_text('def f(x):\n\treturn "<b>" * x', use_inner_text=False)
    links = answer.locator("a").all()
    found = [(link.get_attribute("href"), link.get_attribute("rel")) for link in links]
    expected = ["https://example.org/a_(b)", "https://example.org/c", "mailto:a@example.org"]
    assert found == [(e, "noopener noreferrer") for e in expected], found
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == 'def f(x):\n\treturn "<b>" * x'
    expect(tab.answers().locator(".stats")).to_have_text(
        re.compile(r"^[\d,]+ tokens · [\d.,]+ tokens/s · first token after [\d.]+ m?s$"))
    expect(page.locator("#announce")).to_contain_text("Some light, strong and old text")
    expect(page.locator("#scroll")).to_have_attribute("aria-live", "off")


def attacks_stay_text(tab):
    tab.page.goto("/")
    tab.write(ATTACK)
    tab.send("<img src=x onerror=\"document.title='hacked'\">")
    tab.finish(1)
    assert "hacked" not in tab.page.title().split("document")[0], tab.page.title()
    answer = tab.answers().locator(".content")
    expect(answer.locator("script, img, iframe")).to_have_count(0)
    expect(tab.page.locator("#messages script, #messages img, #list img")).to_have_count(0)
    found = [link.get_attribute("href") for link in answer.locator("a").all()]
    assert found == ["https://example.org/x.png", "https://example.org/%22onclick=%22x"], found
    assert not answer.locator("[onclick]").count()
    expect(answer).to_contain_text("<script>document.title='hacked'</script>")
    expect(answer).to_contain_text("a (javascript:document.title='hacked')")


def long_texts_take_no_long(tab):
    """Texts that make careless patterns quadratic, straight to the renderer."""
    tab.page.goto("/")
    took = tab.page.evaluate("""async () => {
        const { showMarkdown } = await import("/markdown.js");
        const n = 50000, begun = performance.now();
        for (const text of ["*a_".repeat(n), "[".repeat(n), "](".repeat(n), "`".repeat(n), "` `` ".repeat(n / 5),
            "> ".repeat(n), "- ".repeat(n), "# " + " ".repeat(n) + "x", " ".repeat(n) + "x\\n",
            "|".repeat(n) + "\\n|-|", "~".repeat(n) + "`", "~~~" + "~".repeat(n) + "`", "<".repeat(n), "![".repeat(n),
            "\\\\".repeat(n), "*".repeat(n) + "a" + "*".repeat(n), "[a](b ".repeat(n / 5), "http://".repeat(n / 7),
            "- a\\n".repeat(n / 4)])
            showMarkdown(document.createElement("div"), text);
        return performance.now() - begun;
    }""")
    assert took < 10000, f"{took:.0f} ms"


def an_answer_can_be_stopped(tab):
    page = tab.page
    page.goto("/")
    tab.write(None)
    tab.send("Go on")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(tab.answers().locator(".stats")).to_contain_text("tokens/s")
    expect(page.locator("article[aria-busy=true]")).to_have_count(1)
    page.keyboard.press("Escape")
    tab.finish(1)
    expect(tab.answers().locator(".stats")).to_have_text(re.compile("^about .* · stopped$"))
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    tab.send("Again")
    page.get_by_role("button", name="Stop").click()
    tab.finish(2)
    deadline = time.monotonic() + 10  # the server ends what nobody reads
    while page.request.get("/slots").json():
        assert time.monotonic() < deadline, "a stopped request goes on"
    return page


def messages_are_edited_and_answered_again(tab):
    page = tab.page
    page.goto("/")
    tab.write("first answer")
    tab.send("one")
    tab.finish(1)
    tab.write("second answer")
    tab.send("two")
    tab.finish(2)
    assert [m["content"] for m in tab.sent[-1]["messages"]] == ["one", "first answer", "two"], tab.sent[-1]
    tab.write("third answer")
    tab.answers().nth(1).get_by_role("button", name="Regenerate").click()
    expect(tab.answers().nth(1)).to_contain_text("third answer")
    tab.finish(2)
    page.get_by_role("article", name="You").nth(0).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("another")
    page.get_by_label("Edit the message").press("Enter")
    tab.finish(1)
    assert tab.sent[-1]["messages"] == [{"role": "user", "content": "another"}], tab.sent[-1]
    expect(page.get_by_role("article", name="You")).to_have_count(1)


def settings_reach_the_server(tab):
    page = tab.page
    page.goto("/")
    tab.write("x")
    tab.send("plain")
    tab.finish(1)
    assert sorted(tab.sent[-1]) == ["messages", "model", "stream", "stream_options"], tab.sent[-1]
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt of this conversation").fill("Be brief.")
    values = {"Temperature": "0.5", "Top p": "0.9", "Top k": "40", "Min p": "0.05", "Max tokens": "20", "Seed": "7"}
    for name, value in values.items():
        page.get_by_label(name).fill(value)
    page.get_by_label("Top p").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#settings-error")).to_have_text("Top p must be a number from 0 to 1.")
    page.get_by_label("Top p").fill("0.9")
    page.get_by_role("button", name="Save").click()
    page.reload()
    tab.send("with settings")
    tab.finish(2)
    sent = {k: v for k, v in tab.sent[-1].items() if k not in ("messages", "model", "stream", "stream_options")}
    assert sent == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 20, "seed": 7}, sent
    assert tab.sent[-1]["messages"][0] == {"role": "system", "content": "Be brief."}, tab.sent[-1]
    page.unroute("**/completions")
    for count in (3, 4):
        tab.send("a limit")
        tab.finish(count)
        ended = re.compile("^20 tokens .* · ended at the token limit$")
        expect(tab.answers().last.locator(".stats")).to_have_text(ended)


def conversations_are_kept(tab):
    page, conversations = tab.page, tab.page.get_by_label("Conversations", exact=True).get_by_role("listitem")
    page.goto("/")
    tab.write("kept")
    tab.send("A first title")
    tab.finish(1)
    page.get_by_role("button", name="New conversation").click()
    tab.send("Another one")
    tab.finish(1)
    page.reload()
    expect(conversations).to_have_text(["Another one", "A first title"])
    page.get_by_role("button", name="A first title", exact=True).click()
    expect(tab.answers()).to_contain_text("kept")
    page.get_by_role("button", name="Rename: A first title").click()
    page.get_by_label("Title of the conversation").fill("Renamed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Renamed")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    path = download.value.path()
    exported = json.loads(Path(path).read_text())
    assert {c["title"] for c in exported["conversations"]} >= {"Renamed"}, exported
    for name in ("Renamed", "Another one"):
        page.get_by_role("button", name=f"Delete: {name}").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(conversations).to_have_count(0)
    page.reload()
    expect(conversations).to_have_count(0)
    page.locator("#import-file").set_input_files(path)
    expect(page.locator("#notice")).to_have_text("2 conversations are imported.")
    expect(conversations).to_have_count(2)
    for content, said in [("x", "This file is not JSON."), ("{}", "This file is no export of conversations."),
                          (json.dumps(exported | {"version": 9}), "This export has version 9; version 1 is read."),
                          (json.dumps(exported | {"conversations": [{"messages": [{"role": "x"}]}]}),
                           "This export is damaged: a message is not one of user or assistant with a text.")]:
        page.locator("#import-file").set_input_files({"name": "x.json", "mimeType": "application/json",
                                                      "buffer": content.encode()})
        expect(page.locator("#notice")).to_have_text(said)
    expect(conversations).to_have_count(2)


def errors_are_sentences(tab):
    tab.expected = ("status of 400",)
    tab.page.goto("/")
    tab.send("x" * (CONTEXT + 1))
    tab.finish(1)
    expect(tab.answers().get_by_role("alert")).to_have_text(re.compile(r"^[A-Z].*tokens.*\.$"))
    tab.write("works")
    tab.page.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    tab.page.get_by_label("Edit the message").fill("short")
    tab.page.get_by_role("button", name="Send", exact=True).first.click()
    expect(tab.answers()).to_contain_text("works")


def a_failed_answer_leaves_turns(tab):
    """Roles alternate, as templates want it, also after an answer that never came."""
    page = tab.page
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "", "error": "It failed."}]
    file = {"format": "tarn-conversations", "version": 1, "conversations": [{"title": "Old", "messages": messages}]}
    page.goto("/")
    page.locator("#import-file").set_input_files({"name": "x.json", "mimeType": "application/json",
                                                  "buffer": json.dumps(file).encode()})
    page.get_by_role("button", name="one", exact=True).click()
    expect(tab.answers().get_by_role("alert")).to_have_text("It failed.")
    tab.write("fine")
    tab.send("two")
    tab.finish(2)
    assert tab.sent[-1]["messages"] == [{"role": "user", "content": "one\n\ntwo"}], tab.sent[-1]


def thinking_is_folded(tab):
    tab.page.goto("/")
    tab.write("<think>first **this**</think>then *that*")
    tab.send("Think")
    tab.finish(1)
    thoughts = tab.answers().get_by_role("group")
    expect(thoughts.locator("summary")).to_have_text("Thoughts")
    expect(thoughts.locator("strong")).not_to_be_visible()
    thoughts.locator("summary").click()
    expect(thoughts.locator("strong")).to_have_text("this")
    expect(tab.answers().locator(".content")).to_have_text("then that")
    tab.send("Again")
    tab.finish(2)
    expect(thoughts.first.locator("strong")).to_be_visible()
    assert tab.sent[-1]["messages"][1] == {"role": "assistant", "content": "then *that*"}, tab.sent[-1]


def keys_work(tab):
    page = tab.page
    page.goto("/")
    expect(page.locator("#send")).to_be_enabled()
    page.keyboard.type("one\ntwo")  # a page opens with the focus in its field; Enter would send
    tab.finish(1)
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("x")
    expect(page.get_by_label("Message", exact=True)).to_have_value("two\nx")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def the_theme_can_be_changed(tab):
    page, root = tab.page, tab.page.locator("html")
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    expect(root).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Use the light theme").click()
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    page.get_by_role("button", name="Use the dark theme").click()
    page.emulate_media(color_scheme="light")
    expect(root).to_have_attribute("data-theme", "light")


def a_phone_has_room(tab):
    page = tab.page
    page.set_viewport_size({"width": 375, "height": 700})
    page.goto("/")
    tab.write("| a | b |\n|-|-|\n| " + "long " * 30 + "|" + "x" * 80 + "|\n\n```\n" + "y" * 120 + "\n```\n" + "z" * 90)
    tab.send("w" * 90)
    tab.finish(1)
    assert page.evaluate("() => document.documentElement.scrollWidth <= 375"), "the page is wider than the phone"
    expect(page.get_by_role("button", name="New conversation")).not_to_be_visible()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="New conversation")).not_to_be_visible()
    expect(tab.answers()).to_have_count(0)


def a_server_that_goes_is_reported(browser, folder):
    with served(folder) as (url, server):
        tab = Tab(browser, url)
        tab.expected = ("net::ERR",)
        tab.page.goto("/")
        tab.write(None)
        tab.send("Go on")
        expect(tab.answers().locator(".stats")).to_contain_text("tokens/s")
        status = tab.context.new_page()
        status.goto("/status")
        expect(figure(status, "Running")).to_be_visible()
        server.kill()
        expect(status.locator("#notice")).to_have_text("The server does not answer; trying again.")
        expect(tab.answers().get_by_role("alert")).to_have_text("The connection ended before the answer did.")
        tab.send("Again")
        expect(tab.answers().last.get_by_role("alert")).to_have_text("The server does not answer.")
        tab.close()


def a_key_and_no_template(browser, folder):
    """The name of the model attacks, too."""
    with served(folder, "--api-key-file", folder / "keys", "--alias", ALIAS) as (url, _):
        tab = Tab(browser, url)
        tab.expected = ("status of 401",)
        page = tab.page
        page.goto("/")
        expect(page.get_by_role("dialog", name="API key")).to_be_visible()
        page.get_by_label("Key", exact=True).fill("sk-of-another")
        page.get_by_role("button", name="Use the key").click()
        expect(page.locator("#key-error")).to_have_text("The server refuses this key.")
        page.get_by_label("Key", exact=True).fill(KEY)
        page.get_by_role("button", name="Use the key").click()
        expect(page.locator("#notice")).to_contain_text("This model has no chat template")
        expect(page.locator("#model")).to_have_value(ALIAS)
        expect(page.locator("img")).to_have_count(0)
        assert page.title() == "tarn", page.title()
        tab.write(" upon *a* time")
        tab.send("Once")
        tab.finish(1)
        expect(tab.answers().locator(".content")).to_have_text("upon *a* time")
        assert tab.sent[-1]["prompt"] == "Once" and tab.sent[-1]["max_tokens"] == 256, tab.sent[-1]
        tab.send(" there")
        tab.finish(2)
        assert tab.sent[-1]["prompt"] == "Once upon *a* time there", tab.sent[-1]
        page.reload()  # the tab keeps the key, and gives it to the tab of the status
        expect(page.locator("#model")).to_have_value(ALIAS)
        with page.expect_popup() as popup:
            page.get_by_role("link", name="Status").click()
        expect(popup.value.locator("#server")).to_contain_text(ALIAS)
        expect(popup.value.locator("img")).to_have_count(0)
        stranger = tab.context.new_page()
        stranger.goto("/status")
        expect(stranger.get_by_role("dialog", name="API key")).to_be_visible()
        stranger.get_by_role("button", name="Cancel").click()
        expect(stranger.locator("#notice")).to_contain_text("needs an API key")
        tab.close()


def a_model_is_chosen(browser, folder):
    """Another model is loaded for all; one that cannot be leaves the one before."""
    plain, broken = folder.parent / "plain", folder.parent / "broken"
    broken.mkdir()
    with served(folder, others=(plain, broken)) as (url, _):
        tab, other = Tab(browser, url), Tab(browser, url)
        tab.expected, other.expected = ("status of 500", "status of 503"), ("status of 409", "status of 503")
        page, choice = tab.page, tab.page.get_by_label("Model", exact=True)
        for one in (tab, other):
            one.page.goto("/")
            expect(one.page.locator("#model")).to_have_value("random")
        expect(choice.locator("option")).to_have_text(["random", "plain", "broken"])
        choice.select_option("plain")
        expect(page.locator("#notice")).to_contain_text("This model has no chat template")
        expect(choice).to_have_value("plain")
        tab.write(" upon")
        tab.send("Once")
        tab.finish(1)
        assert tab.sent[-1]["model"] == "plain", tab.sent[-1]
        other.send("Hello")
        expect(other.answers().get_by_role("alert")).to_contain_text("'random' is not loaded, 'plain' is")
        expect(other.page.locator("#model")).to_have_value("plain")
        choice.select_option("broken")
        expect(page.locator("#notice")).to_have_class("notice bad")
        expect(choice).to_have_value("plain")
        choice.select_option("random")
        expect(page.locator("#notice")).not_to_be_visible()
        expect(choice).to_have_value("random")
        tab.send("Hello")
        tab.finish(2)
        assert tab.sent[-1]["model"] == "random", tab.sent[-1]
        page.goto("/status")
        expect(page.locator("#server")).to_contain_text("random on cpu")
        tab.close()
        other.close()


def an_adapter_is_chosen(browser, folder):
    """Adapters are in the list of models, and are chosen for one's own requests alone."""
    random_model.write_adapter(folder.parent / "adapter", 1, 2, ["q_proj", "v_proj"])
    with served(folder, "--lora", f"formal={folder.parent / 'adapter'}") as (url, _):
        tab, other = Tab(browser, url), Tab(browser, url)
        choice = tab.page.get_by_label("Model", exact=True)
        for one in (tab, other):
            one.page.goto("/")
            expect(one.page.locator("#model")).to_have_value("random")
        expect(choice.locator("option")).to_have_text(["random", "formal"])
        choice.select_option("formal")
        for one, model in ((tab, "formal"), (other, "random")):
            one.send("Hello")
            one.finish(1)
            assert one.sent[-1]["model"] == model, one.sent[-1]
        expect(choice).to_have_value("formal")
        tab.close()
        other.close()


# ---- tests of the status page


@contextlib.contextmanager
def busy(url):
    """Eight sequences that run until the client goes."""
    host = url.split("//")[1]
    connection = http.client.HTTPConnection(host, timeout=60)
    body = {"prompt": "Once", "n": 8, "max_tokens": CONTEXT - 100, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def figure(page, name):
    return page.locator("#tiles > div", has=page.locator("dt", has_text=re.compile(f"^{name}$"))).locator(".value")


def status_follows_the_server(tab):
    page, rows = tab.page, tab.page.locator("#slots tr")
    answer = page.goto("/status")
    assert answer.headers["content-security-policy"] == POLICY, answer.headers
    expect(figure(page, "Running")).to_have_text("0 of 32")
    expect(page.locator("#none")).to_have_text("No request is running or waiting.")
    expect(page.locator("#server")).to_contain_text("random on cpu, context of 8,192 tokens, tarn")
    with busy(tab.url):
        expect(figure(page, "Running")).to_have_text("8 of 32")
        expect(rows).to_have_count(8)
        expect(rows.first).to_contain_text("running")
        expect(rows.first).to_contain_text(re.compile("of 8,092"))
        expect(figure(page, "Tokens/s")).to_have_text(re.compile("^[1-9]"))
        expect(figure(page, "KV pages used")).to_have_text(re.compile("^[1-9]"))
        expect(page.locator("#chart path.new")).to_have_attribute("d", re.compile("^M.*L"))
    expect(figure(page, "Running")).to_have_text("0 of 32")
    expect(rows).to_have_count(0)
    expect(page.locator("#tiles")).to_contain_text(re.compile("gone [1-9]"))


def a_hidden_page_asks_for_nothing(tab):
    page, hide = tab.page, """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.goto("/status")
    expect(figure(page, "Running")).to_be_visible()
    page.evaluate(hide, True)
    page.wait_for_timeout(500)  # what was asked before is answered
    asked = len(tab.asked)
    page.wait_for_timeout(2000)
    assert len(tab.asked) == asked, tab.asked[asked:]
    with page.expect_request("**/metrics"):
        page.evaluate(hide, False)


def the_status_fits_a_phone(tab):
    tab.page.set_viewport_size({"width": 375, "height": 700})
    tab.page.goto("/status")
    expect(figure(tab.page, "Running")).to_be_visible()
    assert tab.page.evaluate("() => document.documentElement.scrollWidth <= 375"), "the page is wider than the phone"


# ---- pictures


def pictures(browser, url, folder):
    for width in (375, 768, 1400):
        for scheme in ("light", "dark"):
            tab = Tab(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)
            page, name = tab.page, f"{folder}/{width}-{scheme}"
            page.goto("/")
            page.wait_for_timeout(200)
            page.screenshot(path=f"{name}-empty.png")
            tab.write(MARKDOWN)
            tab.send("Show me some **Markdown**, please.\nAll of it.")
            tab.finish(1)
            page.screenshot(path=f"{name}-markdown.png")
            tab.write(None)
            tab.send("And now a text without an end")
            page.wait_for_timeout(700)
            page.screenshot(path=f"{name}-streaming.png")
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Settings").click()
            page.screenshot(path=f"{name}-settings.png")
            page.get_by_role("button", name="Cancel").click()
            if width < 800:
                page.get_by_role("button", name="Conversations").click()
                page.wait_for_timeout(300)
                page.screenshot(path=f"{name}-side.png")
            page.goto("/status")
            with busy(url):
                page.wait_for_timeout(3000)
                page.screenshot(path=f"{name}-status.png", full_page=True)
            tab.close()


# ---- all of them

CHAT = [headers_and_policy, markdown_is_shown, attacks_stay_text, long_texts_take_no_long, an_answer_can_be_stopped,
        messages_are_edited_and_answered_again, settings_reach_the_server, conversations_are_kept, errors_are_sentences,
        a_failed_answer_leaves_turns, thinking_is_folded, keys_work, the_theme_can_be_changed, a_phone_has_room,
        status_follows_the_server, a_hidden_page_asks_for_nothing, the_status_fits_a_phone]
SERVERS = [a_server_that_goes_is_reported, a_key_and_no_template, a_model_is_chosen, an_adapter_is_chosen]


def run(name, test):
    begun = time.monotonic()
    try:
        test()
    except Exception as error:
        print(f"FAILED: {name}: {error}")
        return 1
    print(f"{name}: {time.monotonic() - begun:.1f} s")
    return 0


def check_all(browser, scratch, options):
    chat, plain, failed = scratch / "random", scratch / "plain", 0
    random_model.write(chat, context=CONTEXT)
    random_model.write(plain, template=None, context=CONTEXT)
    (plain / "keys").write_text(KEY + "\n")
    with served(chat) as (url, _):
        def in_tab(test):
            tab = Tab(browser, url)
            test(tab)
            tab.close()
        for test in CHAT:
            if re.search(options.only, test.__name__):
                failed += run(test.__name__, lambda: in_tab(test))
        if options.pictures:
            os.makedirs(options.pictures, exist_ok=True)
            pictures(browser, url, options.pictures)
    for test, folder in zip(SERVERS, (chat, plain, chat, chat)):
        if re.search(options.only, test.__name__):
            failed += run(test.__name__, lambda: test(browser, folder))
    return failed


def main():
    parser = argparse.ArgumentParser(description="tests of the pages of tarn serve")
    parser.add_argument("--pictures", metavar="FOLDER", help="write screenshots into the folder")
    parser.add_argument("--only", metavar="PATTERN", default="", help="run tests whose names match")
    options = parser.parse_args()
    expect.set_options(timeout=10000)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        failed = check_all(browser, Path(scratch), options)
        print(f"{failed} FAILED" if failed else f"the pages work in Chromium {browser.version}")
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

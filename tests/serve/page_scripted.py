#!/usr/bin/env python3
"""The page in headless Chromium with answers that a test wrote (scripted_server.py): Markdown, code, formulas, thinking, text from
right to left, a long conversation, and hostile text, which must stay text. `--pictures FOLDER` keeps screenshots.

  page_scripted.py --server BINARY --model FOLDER --venv FOLDER [--page FOLDER] [--pictures FOLDER]

`--page` takes the page's files from a folder instead of from the binary, for work on them.
"""

import argparse
import pathlib
import shutil
import sys
import time

from client_support import SKIPPED, inside_venv
from page_browser import Browser, check
from real_server import RealServer
from scripted_server import ScriptedServer, tokens_of

RICH = r"""<think>
A formula, some code, the cases. Start from $ax^2 + bx + c = 0$ and complete the square.
</think>

# Quadratic equations

The roots of $ax^2 + bx + c = 0$ are

$$
x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
$$

In **Python**, with `cmath`:

```python
import cmath

def roots(a, b, c):
    d = cmath.sqrt(b * b - 4 * a * c)
    return (-b + d) / (2 * a), (-b - d) / (2 * a)
```

1. First, the *discriminant* $\Delta = b^2 - 4ac$.
2. Then:
   - if $\Delta > 0$, two real roots;
   - if $\Delta = 0$, one.

> More in [the encyclopedia](https://en.wikipedia.org/wiki/Quadratic_equation).

| case | roots | example |
|:-----|:-----:|--------:|
| $\Delta > 0$ | 2 | $x^2 - 1$ |
| $\Delta < 0$ | 0 | $x^2 + 1$ |

\[ \sum_{i=1}^{n} i = \frac{n(n+1)}{2}, \qquad A = \begin{pmatrix} a & b \\ c & d \end{pmatrix} \]
"""
RIGHT_TO_LEFT = ("مرحبا! هذه **إجابة** بالعربية مع `code` داخلها.\n\n1. أولا\n2. ثانيا مع $x^2$\n\n> שלום עולם, with English inside.\n\n"
                 "And an English paragraph.")

CALLS = """I look both cities up.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Reykjavík", "days": 3, "units": {"temperature": "C", "wind": "m/s"}}}
</tool_call>
<tool_call>
<function=mcp.read-file>
<parameter=path>
/home/a-user/a/rather/long/path/that/does/not/fit/into/one/line/of/a/phone/and/goes/on/notes.txt
</parameter>
</function>
</tool_call>"""

ALERT = "window.hacked = true"
HOSTILE = {
    "tags": f"<script>{ALERT}</script><img src=x onerror='{ALERT}'><svg/onload={ALERT}><iframe srcdoc='<script>{ALERT}</script>'></iframe>",
    "attributes": f"<a href='javascript:{ALERT}' onclick='{ALERT}'>x</a> <p style='position:fixed;inset:0'>x</p> <base href=//evil>",
    "links": f"[a](javascript:{ALERT}) [b](JaVaScRiPt:{ALERT}) [c](data:text/html,<script>{ALERT}</script>) [d](java\tscript:{ALERT}) ![e](data:image/svg+xml,x) "
             f"<javascript:{ALERT}> [f](https://e.org\"onclick=\"{ALERT}) [g](&#106;avascript:{ALERT}) ![h](https://127.0.0.1:1/x.png)",
    "fences": f"```html\n<script>{ALERT}</script>\n````\n```\n~~~\n</code></pre><script>{ALERT}</script>\n```js onload={ALERT}\n",
    "formulas": f"$\\text{{<img src=x onerror={ALERT}>}}$ $$\\href{{javascript:{ALERT}}}{{x}}$$ $<script>{ALERT}</script>$ \\(\\style{{x}}{{y}}\\)",
    "table": f"| <script>{ALERT}</script> | b |\n|---|---|\n| [x](javascript:{ALERT}) | <img src=x onerror={ALERT}> |",
    "unclosed": "**a *b `c ~~d [e](https://e.org ![f $g \\(h $$i \\[j <k &l | m\n> n\n- o\n```p\n<script>",
    "entities": f"&lt;script&gt;{ALERT}&lt;/script&gt; &#60;img src=x onerror={ALERT}&#62; &amp;lt;b&amp;gt;",
    "thinking": f"<think><script>{ALERT}</script></think><think>[x](javascript:{ALERT})</think>",
    "directions": "\u202egnp.exe\u202c \u2066x\u2069 \u0000 \ufeff \u2028 end",
}
# Everything the page may make out of an answer.
TAGS = set("div p br span code pre strong em del a ul ol li h3 h4 h5 h6 hr blockquote table thead tbody tr th td button details summary "
           "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd mstyle mphantom".split())
ATTRIBUTES = set("class dir data-token href title target rel tabindex type start display mathvariant stretchy fence accent accentunder "
                 "linethickness width displaystyle lspace rspace open hidden".split())


def inventory(browser):
    """Tags, attributes and addresses in the answers."""
    return browser.script(
        "const all = [...document.querySelectorAll('.text *, .thinking, .thinking *')];"
        "return {tags: [...new Set(all.map((e) => e.localName))], attributes: [...new Set(all.flatMap((e) => e.getAttributeNames()))],"
        " links: [...new Set(all.filter((e) => e.href).map((e) => e.protocol))]}")


def renders(browser, server, pictures, name):
    server.answer = RICH
    server.pause = 0.002
    browser.ask("How do I solve a quadratic equation?")
    server.pause = 0
    for selector, count in ((".text h3", 1), (".text math", 10), (".text .math-block", 2), (".text pre code", 1), (".text ol > li", 2), (".text ul > li", 2),
                            (".text blockquote a", 1), (".text td", 6), (".text strong", 1), (".text em", 1), (".text :not(pre) > code", 1)):
        found = browser.all(selector)
        check(len(found) == count, f"{selector}: {len(found)} found, expected {count}")
    check(browser.text(".text pre").startswith("import cmath\n\ndef roots(a, b, c):\n    d = "), browser.text(".text pre"))
    link = browser.one(".text a")
    check(link.get_attribute("rel") == "noopener noreferrer nofollow" and link.get_attribute("target") == "_blank", "the link")
    check(browser.all(".text .token.s1") and browser.all(".text pre .token"), "colours inside Markdown")
    # Thinking: folded at the end, and open for whoever wants it.
    check(browser.one(".thinking").is_displayed() and not browser.one(".thought").is_displayed(), "thinking is folded")
    check(browser.text(".thinking summary").startswith("Thought"), browser.text(".thinking summary"))
    check("<think>" not in browser.text(".text") and "complete the square" not in browser.text(".text"), "thinking is apart")
    browser.click(".thinking summary")
    check(browser.one(".thought").is_displayed() and browser.all(".thought math"), "thinking opens")
    browser.scroll(0)
    browser.picture(pictures, f"markdown-{name}")
    browser.scroll(560)
    browser.picture(pictures, f"markdown-more-{name}")
    # The model is not told what it thought.
    server.answer = "Yes."
    browser.ask("Sure?")
    check("complete the square" not in str(server.bodies[-1]["messages"]), server.bodies[-1]["messages"])
    copied = browser.copied(".code .tool")
    check(copied == browser.text(".text pre"), copied)


def thinks(browser, server):
    """Opened by the model, by the template, or set apart by the server; open while it lasts."""
    for text, end in (("<think>one two three four five six seven eight</think> answer", None),
                      ("one two three four five six seven eight</think> answer", ["<|assistant|>", "<think>", "\n"])):
        server.tokenizer = {"chat_template": "{{ '<think>' }} {{ messages }}"} if end else {}
        server.prompt_end = end
        browser.driver.refresh()
        browser.wait_ready()
        browser.click("#new-chat")  # the reload shows the conversation before
        server.answer, server.hold_after = text, 5
        server.go_on.clear()
        browser.send("Think.")
        browser.wait(lambda: browser.all(".thinking") and browser.one(".thought").is_displayed(), "thinking, unfolded")
        check(browser.text(".thinking summary").startswith("Thinking"), browser.text(".thinking summary"))
        check(browser.text(".text") == "", "no answer yet")
        server.go_on.set()
        browser.wait_done()
        check(browser.text(".text").strip() == "answer", browser.text(".text"))
        check(not browser.one(".thought").is_displayed() and browser.text(".thinking summary").startswith("Thought"), "folded again")
        check(browser.text(".thought").strip() == "one two three four five six seven eight", browser.text(".thought"))
    server.hold_after = None
    server.tokenizer, server.prompt_end = {}, None
    pieces = [{"reasoning_content": "hm "}, {"reasoning_content": "so"}, {"content": "yes "}, {"content": "**sir**"}]
    server.events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in pieces] + ["[DONE]"]
    check(browser.ask("Think.").strip() == "yes sir", "set apart by the server")
    check(browser.all(".thought")[-1].get_attribute("textContent").strip() == "hm so", "set apart by the server")
    server.events = None


def calls(browser, server, pictures, name):
    """Calls are folded under their names and open as JSON with a line for each member; so does an answer that is JSON."""
    server.answer = CALLS
    browser.click("#new-chat")
    check(browser.ask("How is the weather?").strip() == "I look both cities up.", browser.text(".text"))
    summaries = [card.text for card in browser.all(".call summary")]
    check(summaries == ["Calls get_weather", "Calls mcp.read-file"], summaries)
    check(not any(body.is_displayed() for body in browser.all(".call pre")), "calls are folded")
    browser.picture(pictures, f"calls-folded-{name}")
    browser.script("document.querySelectorAll('.call').forEach((card) => { card.open = true; })")
    shown = [body.get_attribute("textContent") for body in browser.all(".call pre")]
    check(shown[0].splitlines()[:3] == ["{", '  "city": "Reykjavík",', '  "days": 3,'], shown[0])
    check('"path": "/home/a-user' in shown[1], shown[1])
    browser.picture(pictures, f"calls-{name}")
    width = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(width <= 0, f"the page is {width} too wide")
    server.answer = '{"city": "Oslo", "days": [1, 2]}'
    browser.click("#new-chat")
    browser.ask("As JSON.")
    browser.wait(lambda: browser.all(".call pre"), "the answer as JSON", 20)
    check(browser.text(".call pre").startswith('{\n  "city": "Oslo",\n'), browser.text(".call pre"))
    browser.picture(pictures, f"json-{name}")


def right_to_left(browser, server, pictures, name):
    server.answer = RIGHT_TO_LEFT
    browser.click("#new-chat")
    browser.ask("اكتب لي شيئا بالعربية من فضلك")
    directions = browser.script(
        "return [...document.querySelectorAll('.said p, .text > *')].map((e) => getComputedStyle(e).direction)")
    check(directions == ["rtl", "rtl", "rtl", "rtl", "ltr"], directions)
    check(browser.script("return getComputedStyle(document.querySelector('.text p code')).direction") == "ltr", "code")
    check(browser.one("#prompt").get_attribute("dir") == "auto", "the prompt")
    browser.picture(pictures, f"right-to-left-{name}")


def stays_text(browser, server):
    """Nothing that a model writes becomes more than text, and all of it is there."""
    for name, text in HOSTILE.items():
        server.answer = text
        browser.click("#new-chat")
        browser.ask(f"{name}: <script>{ALERT}</script>")
        found = inventory(browser)
        check(set(found["tags"]) <= TAGS, f"{name}: {set(found['tags']) - TAGS}")
        check(set(found["attributes"]) <= ATTRIBUTES, f"{name}: {set(found['attributes']) - ATTRIBUTES}")
        check(set(found["links"]) <= {"http:", "https:", "mailto:"}, f"{name}: {found['links']}")
        browser.click("#markdown")
        shown = browser.text(".text")
        browser.click("#markdown")
        expected = text.split("</think>", 1)[1] if name == "thinking" else text
        check(shown.strip() == expected.strip(), f"{name}: {shown!r}, expected {expected!r}")
    check(not browser.script("return window.hacked"), "a script ran")
    check(not browser.all("#log img, #log script, #log iframe, #log svg, #log style"), "an element of the model's")
    # Tokens and their rivals in the tooltip are text too, and so are titles in the list.
    server.answer = "<b>bold</b> <i>x</i>"
    browser.click("#new-chat")
    browser.ask("<b>title</b>")
    browser.hover(browser.all(".token")[0])
    browser.wait(lambda: browser.one(".tooltip").is_displayed(), "the tooltip", 5)
    check("<b>" in browser.text(".tooltip") and not browser.all(".tooltip td b"), "the tooltip")
    browser.click("#show-library")
    check(browser.all("#library .title")[0].text == "<b>title</b>", "the list")
    browser.click("#library-close")


def forbids(browser):
    """The browser itself refuses what the page never does."""
    # Later, and so not as a command of the driver, which may do more than a page.
    refused = browser.driver.execute_async_script(
        "const tries = {html: () => { document.createElement('div').innerHTML = '<b>x</b>'; },"
        "  write: () => document.write('x'), code: () => new Function('return 1')(), parse: () => new DOMParser().parseFromString('x', 'text/html')};"
        "setTimeout(() => arguments[0](Object.entries(tries).filter(([, act]) => { try { act(); return false; } catch { return true; } }).map(([name]) => name)), 50)")
    check(refused == ["html", "write", "code", "parse"], refused)


def bears_length(browser, server):
    """Lines of 100 kB and thousands of blocks leave the page alive."""
    for text in ("word " * 20_000, "x" * 100_000, "*a " * 17_000 + "a* " * 17_000, "```\n" * 5_001):
        server.events = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None,
                                       "tokens": [{"id": 0, "text": piece, "source": 1, "early": False}]}]} for piece in (text[i:i + 50] for i in range(0, len(text), 50))]
        server.events.append("[DONE]")
        browser.click("#new-chat")
        began = time.monotonic()
        browser.ask("Long.")
        check(browser.all(".state")[-1].text == "complete", browser.all(".state")[-1].text)
        print(f"  {text[:8]!r}: {len(text)} characters in {time.monotonic() - began:.1f} s")
        width = browser.script("return document.documentElement.scrollWidth")
        check(width <= 1280, f"the page is {width} wide")
    server.events = None


def long_conversation(browser, server, pictures, name):
    """Many turns; the end stays in sight, unless the reader has gone back."""
    browser.click("#new-chat")
    for turn in range(12):
        server.answer = f"Answer **{turn}**: " + "the story goes on and on. " * (turn % 5 + 1)
        browser.ask(f"Question {turn}?")
    log = "const l = document.getElementById('log'); "
    check(browser.script(log + "return l.scrollHeight - l.scrollTop - l.clientHeight") < 3, "the end is in sight")
    check(len(browser.all(".said")) == 12 and len(browser.all(".retry")) == 1, "12 turns, one to retry")
    check(len(server.bodies[-1]["messages"]) == 23, len(server.bodies[-1]["messages"]))
    browser.picture(pictures, f"long-{name}")
    browser.driver.refresh()
    browser.wait_ready()
    browser.click("#show-library")
    browser.script("document.querySelector('#library .name').click()")
    browser.wait(lambda: len(browser.all(".answer")) == 12, "all of it again", 20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--page")
    parser.add_argument("--pictures")
    options = parser.parse_args()
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            print(f"SKIPPED: there is no {program} (Debian's packages chromium and chromium-driver)")
            sys.exit(SKIPPED)
    inside_venv(options.venv, ["selenium"], "selenium")
    if options.pictures:
        pathlib.Path(options.pictures).mkdir(parents=True, exist_ok=True)

    check("".join(tokens_of(RICH)) == RICH, "made-up tokens are the text")
    with RealServer(options.server, options.model) as real, ScriptedServer(real.url, options.page) as server:
        with Browser(server.url, 1280, 900) as browser:
            renders(browser, server, options.pictures, "light")
            calls(browser, server, options.pictures, "light")
            right_to_left(browser, server, options.pictures, "light")
            stays_text(browser, server)
            long_conversation(browser, server, options.pictures, "light")
            thinks(browser, server)
            check(not browser.complaints(), browser.complaints())
            bears_length(browser, server)
            check(not browser.complaints(), browser.complaints())
            forbids(browser)
        with Browser(server.url, 1280, 900, dark=True) as browser:
            renders(browser, server, options.pictures, "dark")
            calls(browser, server, options.pictures, "dark")
            right_to_left(browser, server, options.pictures, "dark")
        with Browser(server.url, 390, 844, dark=True, phone=True) as browser:
            renders(browser, server, options.pictures, "phone")
            calls(browser, server, options.pictures, "phone")
            width = browser.script("return document.documentElement.scrollWidth")
            check(width <= 390, f"the page is {width} wide")
    print("page: all checks passed")


if __name__ == "__main__":
    main()

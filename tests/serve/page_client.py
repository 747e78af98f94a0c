#!/usr/bin/env python3
"""The page in headless Chromium (Debian's chromium and chromium-driver, `selenium` from PyPI) on the demo models: send, stream,
stop, retry, switch, side by side, edit and resend, copy, conversations and their export, a full context, a server that goes and
comes back, keys, the examples' answers, keyboard, phone, dark. `--pictures FOLDER` keeps screenshots.

  page_client.py --server BINARY --model FOLDER [--other FOLDER] --venv FOLDER [--pictures FOLDER]
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time

from client_support import SKIPPED, inside_venv
from page_browser import Browser, check
from real_server import RealServer

SILENT = "The server does not answer."
# What the examples' answers end in, in their order; a story has no one answer.
RESULTS = ["5", "95", "8", None]


def sends_and_streams(browser, pictures):
    browser.picture(pictures, "welcome-light")
    check(browser.script("return document.activeElement.tagName") == "BODY", "focus was taken")
    check(not browser.one("#meter").is_displayed(), "nothing is in use yet")
    browser.set("#temperature", 0)
    browser.set("#max_tokens", 90)
    browser.click("#markdown")  # as it is written: then the tokens are the text
    # The answer may be complete before we look: the page itself notes how it grew.
    browser.script(
        "window.seen = []; const log = document.getElementById('log');"
        "new MutationObserver(() => seen.push([document.querySelectorAll('.token').length, log.getAttribute('aria-busy')]))"
        ".observe(log, {childList: true, subtree: true});")
    browser.ask("Tell me a story about a cat and a boat.")
    seen = browser.script("return window.seen")
    check(len({count for count, _ in seen}) > 5, f"the answer did not come in pieces: {seen}")
    check(any(busy == "true" for _, busy in seen), "aria-busy")
    check(browser.one("#log").get_attribute("aria-busy") == "false", "aria-busy")
    check("Answer complete" in browser.text("#status"), browser.text("#status"))
    tokens = browser.all(".token")
    check(len(tokens) > 20, len(tokens))
    check("".join(token.get_attribute("textContent") for token in tokens) == browser.text(".text"), "text and tokens")
    kinds = {token.get_attribute("class").split()[-1] for token in tokens}
    check(kinds <= {"s0", "s1", "s2", "early"} and "s1" in kinds, kinds)
    check(float(browser.all(".numbers dd")[0].text) > 0, "tokens/s")
    per_pass = float(browser.all(".numbers dd")[1].text)
    check(per_pass > 1, "tokens per pass")
    loops = int(re.search(r"(\d+) loops", browser.one("canvas").get_attribute("aria-label"))[1])
    recurrence = int(re.search(r"(\d+) recurrences", browser.text("#model"))[1])
    check(abs(per_pass - recurrence * len(browser.all(".token")) / loops) < 0.2, (per_pass, loops))
    drafted, *fates = map(int, re.findall(r"\d+", browser.text(".counts").split("·")[0]))
    check(drafted == sum(fates), browser.text(".counts"))
    drawn = browser.script(
        "const c = document.querySelector('canvas');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length")
    check(drawn > 1000, f"the picture has {drawn} pixels")
    used, context = meter(browser)
    check(context == 2048 and 90 < used < 200, (used, context))
    browser.click("#markdown")
    browser.look_back()
    browser.picture(pictures, "loopspec-light")


def meter(browser):
    """Tokens in use, and those there are."""
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", browser.text("#meter"))]


def shows_probabilities(browser, pictures):
    """Every token says how likely it was and what else was."""
    browser.hover(browser.all(".token")[5])
    browser.wait(lambda: browser.one(".tooltip").is_displayed(), "the tooltip", 5)
    shares = [float(cell.text.removesuffix(" %").removeprefix("< ")) for cell in browser.all(".tooltip .share-of")]
    check(5 <= len(shares) <= 6 and 0 < sum(shares) < 100.1 and shares == sorted(shares, reverse=True), shares)
    check(len(browser.all(".tooltip .chosen")) == 1, "the chosen one")
    names = ["first draft", "second draft", "early draft", "full computation"]
    check(browser.text(".tooltip .kind") in names, browser.text(".tooltip .kind"))
    check([key.text for key in browser.all("#legend .key b")] == names, "the legend's order")
    browser.picture(pictures, "probabilities-light")
    browser.click("#explain")
    words = browser.text("#explanation")
    check(browser.one("#explanation").is_displayed() and all(name in words for name in names), words)
    check([key.text for key in browser.all("#explanation .key b")] == names, "the explanation's order")
    browser.picture(pictures, "explanation-light")
    browser.click("#explain")
    check(not browser.one("#explanation").is_displayed(), "the explanation closes")


def stops_and_retries(browser, server):
    answers = len(browser.all(".answer"))
    cancelled = server.metric("loopspec:request_failure_total", "cancelled")
    browser.set("#max_tokens", 1500)
    # Escape at the third token, pressed by the page itself: the answer takes less than a second.
    browser.script(
        "const log = document.getElementById('log'); const watch = new MutationObserver(() => {"
        "  if (log.lastElementChild.querySelectorAll('.token').length < 3) return;"
        "  watch.disconnect();"
        "  document.getElementById('prompt').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));"
        "}); watch.observe(log, {childList: true, subtree: true});")
    browser.ask("Write about a rainy day, at great length.")
    check(browser.all(".state")[-1].text == "stopped", browser.all(".state")[-1].text)
    browser.wait(lambda: server.metric("loopspec:request_failure_total", "cancelled") == cancelled + 1, "the server to notice", 2)
    browser.set("#max_tokens", 12)
    browser.click(".retry")
    browser.wait_done()
    check(len(browser.all(".answer")) == answers + 1, "a retry adds no answer")
    check(browser.all(".state")[-1].text == "token limit", browser.all(".state")[-1].text)


def runs_both(browser, pictures, name):
    browser.click("#new-chat")
    check(not browser.all(".answer"), "a new chat is empty")
    browser.set("#max_tokens", 90)
    browser.choose("both")
    check(browser.one("#in-turn").is_displayed(), "the choice of order")
    browser.ask("Tell me a story about a dog who found a ball.")
    first, second = [text.get_attribute("textContent") for text in browser.all(".text")]
    check(first == second and len(first) > 20, (first, second))
    check("token for token" in browser.text(".verdict"), browser.text(".verdict"))
    plain = browser.all(".answer")[0]
    check(not plain.find_elements("css selector", ".token.s0, .token.s1"), "autoregressive text has no colours")
    browser.look_back()
    browser.picture(pictures, name)
    return browser.text(".verdict")


def switches(browser):
    browser.choose("ar")
    browser.click("#new-chat")
    browser.ask("Write about the sun.")
    check(browser.text(".answer h3") == "Autoregressive", browser.text(".answer h3"))
    browser.choose("loopspec")
    browser.one("#theme").click()
    check(browser.one("html").get_attribute("data-theme") == "light", "the theme")


def never_html(browser):
    """What a model or a user writes is text."""
    browser.click("#new-chat")
    browser.set("#max_tokens", 5)
    browser.ask("<img src=x onerror=alert(1)><b>bold</b>")
    check(browser.text(".said p") == "<img src=x onerror=alert(1)><b>bold</b>", browser.text(".said p"))
    check(not browser.all("#log img") and not browser.all("#log b"), "text became HTML")


def edits_and_copies(browser):
    """A message that is edited takes what came after it with it; texts can be copied."""
    browser.click("#new-chat")
    browser.set("#max_tokens", 40)
    browser.ask("Tell me about a cat.")
    answer = browser.ask("And about a dog.")
    check(len(browser.all(".said")) == 2, "two messages")
    copied = browser.copied(".turn:last-child .answer .tool")
    check("".join(copied.split()) == "".join(answer.split()), (copied, answer))

    browser.driver.execute_script("arguments[0].click()", browser.all(".edit")[0])
    browser.set(".editing textarea", "Tell me about a bird.")
    browser.click(".editing .primary")
    browser.wait(lambda: len(browser.all(".turn")) == 1 and not browser.running() and browser.all(".retry"), "the answer to the edited message")
    check([said.text for said in browser.all(".said p")] == ["Tell me about a bird."], "what came after it is gone")
    browser.click(".edit")
    browser.click(".editing .quiet")
    check(browser.text(".said p") == "Tell me about a bird.", "cancelled")


def keeps_conversations(browser, pictures):
    """In the browser: open again after a reload, exported, deleted."""
    browser.click("#new-chat")
    browser.ask("Tell me about a horse.")
    text = browser.text(".text")
    colours = [token.get_attribute("class") for token in browser.all(".token")]
    browser.click("#show-library")
    browser.picture(pictures, "library-light")
    titles = [title.text for title in browser.all("#library .title")]
    check("Tell me about a horse." in titles and "Tell me about a bird." in titles and "And about a dog." not in titles, titles)
    with tempfile.TemporaryDirectory() as folder:
        browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": folder})
        for button, ending in (("#export-markdown", ".md"), ("#export-json", ".json"), ("#export-all", "s.json")):
            browser.click(button)
            browser.wait(lambda: any(file.name.endswith(ending) for file in pathlib.Path(folder).iterdir()), f"the file {ending}", 20)
        written = {file.name: file.read_text() for file in pathlib.Path(folder).iterdir()}
    markdown = next(text for name, text in written.items() if name.endswith(".md"))
    check(markdown.startswith("# Tell me about a horse.") and "\n## Model\n" in markdown, markdown)
    everything = json.loads(written["conversations.json"])
    check(everything["format"] == "loopspec-conversations" and len(everything["conversations"]) == len(titles), everything)

    address = browser.script("return location.hash")
    check(len(address) > 5, "a conversation has an address")
    browser.driver.refresh()
    browser.wait_ready()
    browser.wait(lambda: browser.all(".answer"), "the conversation after a reload", 20)
    check(browser.text(".text") == text and browser.script("return location.hash") == address, "F5 keeps the conversation")
    browser.click("#new-chat")
    check(not browser.all(".answer") and browser.script("return location.hash") == "", "a new chat has no address yet")
    browser.driver.back()
    browser.wait(lambda: browser.all(".answer"), "the browser's way back", 20)
    browser.click("#new-chat")
    browser.click("#show-library")
    browser.driver.execute_script("arguments[0].click()", browser.all("#library .name")[0])
    browser.wait(lambda: browser.all(".answer"), "the conversation", 5)
    check(browser.text(".text") == text, (browser.text(".text"), text))
    check([token.get_attribute("class") for token in browser.all(".token")] == colours, "the colours")
    browser.set("#max_tokens", 20)
    browser.ask("And about a cow.")
    check(len(browser.all(".said")) == 2, "it goes on")
    browser.click("#show-library")
    browser.click("#delete-all")
    check(browser.all("#library .title"), "one click deletes nothing")
    browser.click("#delete-all")
    check(not browser.all("#library .title") and not browser.all(".answer"), "all are gone")
    browser.click("#library-close")
    check(not browser.script("return Object.keys(localStorage).some((key) => key.includes('conversation'))"), "nothing is left")


def fills_the_context(browser, pictures):
    """No dead end: what is asked for is cut to the room there is, and a full context loses its oldest messages by itself."""
    browser.click("#new-chat")
    browser.set("#max_tokens", 90000)
    browser.ask("Tell me about a fish.")
    check(browser.all(".state")[-1].text in ("complete", "token limit"), browser.all(".state")[-1].text)
    browser.set("#max_tokens", 30)
    browser.script("arguments[0].value = 'The cat sat on the mat. '.repeat(150)", browser.one("#prompt"))
    browser.ask("")
    browser.script("arguments[0].value = 'The dog ran in the park. '.repeat(150)", browser.one("#prompt"))
    browser.ask("")
    check(not browser.all(".answer .error"), "no red card")
    check(browser.all(".skipped") and "it sees it from here on" in browser.text(".left-out"), "what is left out")
    browser.picture(pictures, "full-light")
    check(browser.all(".state")[-1].text in ("complete", "token limit"), browser.all(".state")[-1].text)
    used, _ = meter(browser)
    check(used < 2048, used)
    browser.script("arguments[0].value = 'The dog ran in the park. '.repeat(500)", browser.one("#prompt"))
    browser.click("#new-chat")
    browser.ask("")
    check("Edit it to make it shorter" in browser.all(".error")[-1].text, browser.all(".error")[-1].text)
    check(not browser.all(".make-room"), "nothing to leave out")


def continues_and_branches(browser):
    """An answer that was cut goes on where it ended; any answer can be the beginning of another conversation."""
    browser.click("#new-chat")
    browser.set("#max_tokens", 40)
    browser.ask("Tell me a story about a cat and a boat.")
    whole = browser.text(".text")
    browser.set("#max_tokens", 20)
    browser.click(".retry")
    browser.wait_done()
    half = browser.text(".text")
    check(whole.startswith(half) and len(half) < len(whole), (half, whole))
    browser.click(".continue")
    browser.wait(lambda: len(browser.text(".text")) > len(half), "more of it")
    browser.wait_done()
    check(browser.text(".text") == whole, (browser.text(".text"), whole))
    browser.ask("And then?")
    first = browser.script("return location.hash")
    browser.driver.execute_script("arguments[0].click()", browser.all(".branch")[0])
    check(len(browser.all(".answer")) == 1 and browser.text(".text") == whole, "a branch ends with its answer")
    check(browser.script("return location.hash") != first, "it is a conversation of its own")
    browser.driver.back()
    browser.wait(lambda: len(browser.all(".answer")) == 2, "the first conversation is whole", 20)
    # An earlier answer that was cut goes on in a branch: what came after it is not lost.
    browser.driver.execute_script("arguments[0].click()", browser.all(".continue")[0])
    browser.wait(lambda: len(browser.all(".answer")) == 1 and len(browser.text(".text")) > len(whole), "more of the first answer")
    browser.wait_done()
    check(browser.text(".text").startswith(whole), (browser.text(".text"), whole))
    check(browser.script("return location.hash") != first, "a conversation of its own again")
    browser.driver.back()
    browser.wait(lambda: len(browser.all(".answer")) == 2 and browser.text(".text") == whole, "the first conversation is as it was", 20)


def server_limit(options):
    """A server with a limit of its own says so once; the page keeps to it."""
    with RealServer(options.server, options.model, "--max-tokens", "16") as server, Browser(server.url, 1000, 800) as browser:
        for _ in range(2):
            browser.ask("Tell me a story about a cat and a boat.")
            check(browser.all(".state")[-1].text == "token limit", browser.all(".state")[-1].text)
            check(browser.all(".numbers dd")[-2].text == "16", browser.all(".numbers dd")[-2].text)


def answers_examples(url):
    """The page's own examples are answered rightly."""
    with Browser(url, 1280, 900) as browser:
        check(len(browser.all("#examples button")) == len(RESULTS), "the examples")
        for number, result in enumerate(RESULTS):
            browser.click("#new-chat")
            browser.driver.execute_script("arguments[0].click()", browser.all("#examples button")[number])
            browser.wait(lambda: browser.all(".turn"), "an answer")
            browser.wait_done()
            check(browser.all(".state")[-1].text == "complete", browser.all(".state")[-1].text)
            lines = browser.script("return document.querySelector('.text').innerText").strip().splitlines()
            if result:
                check(lines[-1].strip().removeprefix("#### ") == result, f"example {number}: {lines}, expected {result}")
            else:
                check("dog" in " ".join(lines) and "ball" in " ".join(lines), lines)


def phone(server, pictures, dark, name):
    with Browser(server.url, 390, 844, dark=dark, phone=True) as browser:
        width = browser.script("return document.documentElement.scrollWidth")
        check(width <= 390, f"the page is {width} wide")
        check(not browser.one("#settings").is_displayed(), "the settings are folded away")
        browser.one("#show-settings").click()
        check(browser.one("#settings").is_displayed(), "the settings open")
        browser.set("#temperature", 0)
        browser.set("#max_tokens", 60)
        browser.picture(pictures, f"{name}-settings")
        browser.one("#show-settings").click()
        browser.ask("Tell me a story about a cat and a boat.")
        width = browser.script("return document.documentElement.scrollWidth")
        check(width <= 390, f"the page is {width} wide")
        check(browser.script("return !document.querySelector('.fold').open"), "the pipeline is folded")
        seen = browser.script("const box = document.querySelector('.text').getBoundingClientRect(); return [box.top, box.bottom, innerHeight]")
        check(seen[1] > 0 and seen[0] < seen[2], f"the answer is in sight: {seen}")
        browser.look_back()
        browser.picture(pictures, name)


def asks_for_key(options):
    """Where it is seen, on a phone too, with what is wrong with it."""
    from selenium.webdriver.common.keys import Keys

    with RealServer(options.server, options.model, "--api-key", "secret") as server:
        for width, on_phone in ((1000, False), (390, True)):
            with Browser(server.url, width, 800, phone=on_phone, ready=False) as browser:
                browser.wait(lambda: browser.one("#key").is_displayed(), "the field for the key")
                check(browser.text("#key-error") == "", "no error yet")
                browser.one("#key").send_keys("wrong", Keys.ENTER)
                browser.wait(lambda: "does not accept this key" in browser.text("#key-error"), "what is wrong")
                check(browser.one("#key").get_attribute("aria-invalid") == "true", "aria-invalid")
                box = browser.one("#key-error").rect
                check(0 < box["y"] < 800 and box["height"] > 0, box)
                browser.picture(options.pictures, f"key-{width}")
                browser.one("#key").clear()
                browser.one("#key").send_keys("secret", Keys.ENTER)
                browser.wait_ready()
                check(not browser.one("#key-panel").is_displayed(), "the field goes")
                browser.ask("Hello.")
                check(browser.all(".state")[-1].text != "failed", "the key is sent")


def comes_back(options):
    """A server that goes is noticed, said, and found again; one that stands still too."""
    with RealServer(options.server, options.model) as server:
        port = server.port
        with Browser(server.url, 1280, 900) as browser:
            browser.set("#max_tokens", 20)
            browser.ask("Tell me about a cat.")
            server.process.send_signal(signal.SIGSTOP)  # so that the question is on its way when the server goes
            browser.send("Tell me about a dog.")
            browser.wait(lambda: len(browser.all(".turn")) == 2, "the question to be sent")
            server.process.kill()
            server.process.wait()
            browser.wait_done()
            check(browser.all(".state")[-1].text == "failed", browser.all(".state")[-1].text)
            check(browser.all(".error")[-1].text == SILENT, browser.all(".error")[-1].text)
            check(browser.one("#banner").is_displayed() and browser.text("#banner-text") == SILENT, browser.text("#banner"))
            browser.picture(options.pictures, "silent-light")
            browser.send("Are you there?")
            time.sleep(0.3)
            check(browser.one("#prompt").get_attribute("value").strip() == "Are you there?", "what was typed is not lost")
            with RealServer(options.server, options.model, port=port) as again:
                browser.wait_ready()
                browser.click(".retry")
                browser.wait_done()
                check(browser.all(".state")[-1].text in ("complete", "token limit"), browser.all(".state")[-1].text)
                again.process.send_signal(signal.SIGSTOP)
                browser.wait(lambda: browser.one("#banner").is_displayed(), "the page to notice by itself", 40)
                again.process.send_signal(signal.SIGCONT)
                browser.wait_ready()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--other", help="another model, for the examples")
    parser.add_argument("--venv", required=True)
    parser.add_argument("--pictures")
    options = parser.parse_args()
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            print(f"SKIPPED: there is no {program} (Debian's packages chromium and chromium-driver)")
            sys.exit(SKIPPED)
    inside_venv(options.venv, ["selenium"], "selenium")
    if options.pictures:
        pathlib.Path(options.pictures).mkdir(parents=True, exist_ok=True)

    with RealServer(options.server, options.model) as server:
        with Browser(server.url, 1280, 900) as browser:
            sends_and_streams(browser, options.pictures)
            shows_probabilities(browser, options.pictures)
            stops_and_retries(browser, server)
            print("light:", runs_both(browser, options.pictures, "both-light"))
            switches(browser)
            never_html(browser)
            edits_and_copies(browser)
            keeps_conversations(browser, options.pictures)
            fills_the_context(browser, options.pictures)
            continues_and_branches(browser)
            check(not browser.complaints(), browser.complaints())
        with Browser(server.url, 1280, 900, dark=True) as browser:
            browser.set("#temperature", 0)
            print("dark:", runs_both(browser, options.pictures, "both-dark"))
            check(not browser.complaints(), browser.complaints())
        phone(server, options.pictures, False, "phone-light")
        phone(server, options.pictures, True, "phone-dark")
        answers_examples(server.url)
    if options.other:
        with RealServer(options.server, options.other) as server:
            answers_examples(server.url)
    server_limit(options)
    asks_for_key(options)
    comes_back(options)
    print("page: all checks passed")


if __name__ == "__main__":
    main()

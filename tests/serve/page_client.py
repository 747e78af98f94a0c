#!/usr/bin/env python3
"""The page in headless Chromium (Debian's chromium and chromium-driver, `selenium` from PyPI) on a demo model:
send, stream, stop, retry, switch, side by side, keyboard, phone, dark. `--pictures FOLDER` keeps screenshots.

  page_client.py --server BINARY --model FOLDER --venv FOLDER [--pictures FOLDER]
"""

import argparse
import pathlib
import shutil
import sys
import time

from client_support import SKIPPED, inside_venv
from real_server import RealServer

LIMIT = 120  # seconds for an answer on a busy machine


def check(condition, what):
    if not condition:
        raise AssertionError(what)


class Browser:
    """A window of Chromium."""

    def __init__(self, url, width, height, dark=False, phone=False):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                         "--force-color-profile=srgb"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if phone:
            options.add_experimental_option(
                "mobileEmulation", {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2.0}})
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        if not phone:
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        scheme = "dark" if dark else "light"
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.driver.get(url + "/")
        self.wait(lambda: "recurrences" in self.text("#model"), "the model's name")

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.one(selector).get_attribute("textContent")

    def wait(self, condition, what, seconds=LIMIT):
        end = time.monotonic() + seconds
        while not condition():
            check(time.monotonic() < end, f"waited in vain for {what}")
            time.sleep(0.05)

    def set(self, selector, value):
        box = self.one(selector)
        box.clear()
        box.send_keys(str(value))

    def choose(self, decode):
        self.driver.execute_script("arguments[0].click()", self.one(f"input[value={decode}]"))

    def send(self, prompt):
        from selenium.webdriver.common.keys import Keys

        self.one("#prompt").send_keys(prompt, Keys.ENTER)

    def running(self):
        return self.one("#stop").is_displayed()

    def wait_done(self):
        self.wait(lambda: not self.running() and self.all(".retry"), "the end of the answer")
        time.sleep(0.2)  # a frame for the picture

    def picture(self, folder, name):
        if folder:
            self.driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()


def sends_and_streams(browser, pictures):
    browser.picture(pictures, "welcome-light")
    check(browser.driver.execute_script("return document.activeElement.tagName") == "BODY", "focus was taken")
    browser.set("#temperature", 0)
    browser.set("#max_tokens", 90)
    # The answer may be complete before we look: the page itself notes how it grew.
    browser.driver.execute_script(
        "window.seen = []; const log = document.getElementById('log');"
        "new MutationObserver(() => seen.push([document.querySelectorAll('.token').length, log.getAttribute('aria-busy')]))"
        ".observe(log, {childList: true, subtree: true});")
    browser.send("Tell me a story about a cat and a boat.")
    browser.wait_done()
    seen = browser.driver.execute_script("return window.seen")
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
    check(float(browser.all(".numbers dd")[1].text.rstrip("×")) > 1, "gamma")
    check("accepted" in browser.text(".counts"), browser.text(".counts"))
    drawn = browser.driver.execute_script(
        "const c = document.querySelector('canvas');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length")
    check(drawn > 1000, f"the picture has {drawn} pixels")
    browser.picture(pictures, "loopspec-light")


def stops_and_retries(browser, server):
    answers = len(browser.all(".answer"))
    cancelled = server.metric("vllm:request_success_total", "cancelled")
    browser.set("#max_tokens", 1500)
    # Escape at the third token, pressed by the page itself: the answer takes less than a second.
    browser.driver.execute_script(
        "const log = document.getElementById('log'); const watch = new MutationObserver(() => {"
        "  if (log.lastElementChild.querySelectorAll('.token').length < 3) return;"
        "  watch.disconnect();"
        "  document.getElementById('prompt').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));"
        "}); watch.observe(log, {childList: true, subtree: true});")
    browser.send("Write about a rainy day, at great length.")
    browser.wait_done()
    check(browser.all(".state")[-1].text == "stopped", browser.all(".state")[-1].text)
    browser.wait(lambda: server.metric("vllm:request_success_total", "cancelled") == cancelled + 1, "the server to notice", 2)
    browser.set("#max_tokens", 12)
    browser.driver.execute_script("arguments[0].click()", browser.one(".retry"))
    browser.wait_done()
    check(len(browser.all(".answer")) == answers + 1, "a retry adds no answer")
    check(browser.all(".state")[-1].text == "token limit", browser.all(".state")[-1].text)


def runs_both(browser, pictures, name):
    browser.one("#new-chat").click()
    check(not browser.all(".answer"), "a new chat is empty")
    browser.set("#max_tokens", 90)
    browser.choose("both")
    check(browser.one("#in-turn").is_displayed(), "the choice of order")
    browser.send("Tell me a story about a dog who found a ball.")
    browser.wait_done()
    first, second = [text.get_attribute("textContent") for text in browser.all(".text")]
    check(first == second and len(first) > 20, (first, second))
    check("token for token" in browser.text(".verdict"), browser.text(".verdict"))
    check(not browser.all(".answer")[0].find_elements("css selector", ".token"), "autoregressive text has no colours")
    browser.picture(pictures, name)
    return browser.text(".verdict")


def switches(browser):
    browser.choose("ar")
    browser.one("#new-chat").click()
    browser.send("Write about the sun.")
    browser.wait_done()
    check(browser.text(".answer h3") == "Autoregressive", browser.text(".answer h3"))
    browser.choose("loopspec")
    browser.one("#theme").click()
    check(browser.one("html").get_attribute("data-theme") == "light", "the theme")


def never_html(browser):
    """What a model or a user writes is text."""
    browser.one("#new-chat").click()
    browser.set("#max_tokens", 5)
    browser.send("<img src=x onerror=alert(1)><b>bold</b>")
    browser.wait_done()
    check(browser.text(".said p") == "<img src=x onerror=alert(1)><b>bold</b>", browser.text(".said p"))
    check(not browser.all("#log img") and not browser.all("#log b"), "text became HTML")


def phone(server, pictures, dark, name):
    with Browser(server.url, 390, 844, dark=dark, phone=True) as browser:
        width = browser.driver.execute_script("return document.documentElement.scrollWidth")
        check(width <= 390, f"the page is {width} wide")
        check(not browser.one("#settings").is_displayed(), "the settings are folded away")
        browser.one("#show-settings").click()
        check(browser.one("#settings").is_displayed(), "the settings open")
        browser.set("#temperature", 0)
        browser.set("#max_tokens", 60)
        browser.picture(pictures, f"{name}-settings")
        browser.one("#show-settings").click()
        browser.send("Tell me a story about a cat and a boat.")
        browser.wait_done()
        width = browser.driver.execute_script("return document.documentElement.scrollWidth")
        check(width <= 390, f"the page is {width} wide")
        browser.picture(pictures, name)


def asks_for_key(options):
    with RealServer(options.server, options.model, "--api-key", "secret") as server:
        from selenium.webdriver.common.keys import Keys

        browser = Browser.__new__(Browser)
        real_wait = Browser.wait
        Browser.wait = lambda *_: None  # the model is not shown before the key is known
        try:
            browser.__init__(server.url, 1000, 800)
        finally:
            Browser.wait = real_wait
        with browser:
            browser.wait(lambda: browser.one("#key").is_displayed(), "the field for the key")
            browser.one("#key").send_keys("secret", Keys.TAB)
            browser.wait(lambda: "recurrences" in browser.text("#model"), "the model's name")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
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
            stops_and_retries(browser, server)
            print("light:", runs_both(browser, options.pictures, "both-light"))
            switches(browser)
            never_html(browser)
            check(not browser.complaints(), browser.complaints())
        with Browser(server.url, 1280, 900, dark=True) as browser:
            browser.set("#temperature", 0)
            print("dark:", runs_both(browser, options.pictures, "both-dark"))
            check(not browser.complaints(), browser.complaints())
        phone(server, options.pictures, False, "phone-light")
        phone(server, options.pictures, True, "phone-dark")
    asks_for_key(options)
    print("page: all checks passed")


if __name__ == "__main__":
    main()

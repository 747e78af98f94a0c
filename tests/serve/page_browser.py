"""The page in headless Chromium: Debian's chromium and chromium-driver, and `selenium` from PyPI."""

import pathlib
import shutil
import time

LIMIT = 120  # seconds for an answer on a busy machine


def check(condition, what):
    if not condition:
        raise AssertionError(what)


class Browser:
    """A window of Chromium."""

    def __init__(self, url, width, height, dark=False, phone=False, ready=True):
        """`ready`: waits until the page knows its model."""
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
        self.driver.command_executor.client_config.timeout = 5 * LIMIT
        if not phone:
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        scheme = "dark" if dark else "light"
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.driver.get(url + "/")
        if ready:
            self.wait_ready()

    def wait_ready(self):
        self.wait(lambda: "recurrences" in self.text("#model") and not self.one("#banner").is_displayed(), "the model's name")

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

    def click(self, selector):
        """The last of these elements, wherever it is scrolled to."""
        self.driver.execute_script("arguments[0].click()", self.all(selector)[-1])

    def hover(self, found):
        from selenium.webdriver import ActionChains

        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        ActionChains(self.driver).move_to_element(found).perform()

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def scroll(self, top):
        self.script("document.getElementById('log').scrollTop = arguments[0]", top)
        time.sleep(0.2)

    def choose(self, decode):
        self.driver.execute_script("arguments[0].click()", self.one(f"input[value={decode}]"))

    def send(self, prompt):
        from selenium.webdriver.common.keys import Keys

        self.one("#prompt").send_keys(prompt, Keys.ENTER)

    def running(self):
        return self.one("#stop").is_displayed()

    def ask(self, prompt):
        """Sends, and waits for the answer's end: its text as it is shown."""
        before = len(self.all(".turn"))
        self.send(prompt)
        self.wait(lambda: len(self.all(".turn")) > before, "a new answer")
        self.wait_done()
        return self.all(".text")[-1].get_attribute("textContent")

    def wait_done(self):
        self.wait(lambda: not self.running() and self.all(".retry"), "the end of the answer")
        time.sleep(0.2)  # a frame for the picture

    def copied(self, selector):
        """What the first of these buttons copies. It says so only for a moment: the clipboard is what counts."""
        self.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        read = "navigator.clipboard.readText().then(arguments[0], () => arguments[0](''))"
        self.driver.execute_async_script("navigator.clipboard.writeText('-').then(arguments[0], arguments[0])")
        self.script("arguments[0].click()", self.one(selector))
        self.wait(lambda: self.driver.execute_async_script(read) not in ("", "-"), "the copy", 60)
        return self.driver.execute_async_script(read)

    def look_back(self):
        """Moves the slider of every picture to the middle of its time."""
        self.driver.execute_script(
            "for (const slider of document.querySelectorAll('.timeline')) {"
            "  slider.value = Math.round(slider.max / 2); slider.dispatchEvent(new Event('input')); }")
        time.sleep(0.2)

    def picture(self, folder, name):
        if folder:
            self.driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

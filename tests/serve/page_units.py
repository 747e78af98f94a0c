#!/usr/bin/env python3
"""Unit tests of the page's modules (page_units.mjs): under node where there is one, else in headless Chromium, else skipped.

  page_units.py --page FOLDER --venv FOLDER [--in node|chromium]
"""

import argparse
import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

from client_support import SKIPPED, inside_venv

RUN = "import { run } from './page_units.mjs'; console.log(JSON.stringify(run()));"


def under_node(folder):
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.mjs").write_text(RUN)
    done = subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def in_chromium(folder):
    from page_browser import Browser

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map = {".js": "text/javascript", ".mjs": "text/javascript", ".html": "text/html", "": "application/octet-stream"}

        def log_message(self, *_):
            pass

    (folder / "index.html").write_text("<!doctype html><script type=module src=run.js></script>")
    (folder / "run.js").write_text("import { run } from './page_units.mjs'; window.result = run();")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Browser(f"http://127.0.0.1:{server.server_port}", 800, 600, ready=False) as browser:
        browser.wait(lambda: browser.driver.execute_script("return window.result !== undefined"), "the unit tests", 600)
        result = browser.driver.execute_script("return window.result")
    server.shutdown()
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True, help="src/serve/page")
    parser.add_argument("--venv", required=True)
    parser.add_argument("--in", dest="where", choices=["node", "chromium"])
    options = parser.parse_args()
    where = options.where or ("node" if shutil.which("node") else "chromium")
    if where == "node" and not shutil.which("node"):
        print("SKIPPED: there is no node")
        sys.exit(SKIPPED)
    if where == "chromium":
        if not shutil.which("chromium") or not shutil.which("chromedriver"):
            print("SKIPPED: there is neither node nor chromium with chromedriver")
            sys.exit(SKIPPED)
        inside_venv(options.venv, ["selenium"], "selenium")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "page").mkdir()
        for file in pathlib.Path(options.page).glob("*.js"):
            shutil.copy(file, folder / "page")
        shutil.copy(pathlib.Path(__file__).with_name("page_units.mjs"), folder)
        result = under_node(folder) if where == "node" else in_chromium(folder)
    for failure in result["failures"]:
        print("FAILED", failure)
    print(f"{result['tests']} tests in {where}, {len(result['failures'])} failed")
    sys.exit(1 if result["failures"] or result["tests"] == 0 else 0)


if __name__ == "__main__":
    main()

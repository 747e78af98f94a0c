"""`loopspec serve` on a demo model, as a child process, for tests from outside."""

import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

READY_SECONDS = 120


class RealServer:
    def __init__(self, binary, model, *arguments, port=0, **options):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        command = [binary, "serve", "--model", model, "--port", str(port), *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL, **options)
        # With --log-file nothing but warnings and the line that says "ready" reaches stderr.
        self.url = self._wait(r"(?:listening on|context \d+,) (http://\S+)").group(1)
        self.port = int(self.url.rsplit(":", 1)[1])
        self._wait(r"ready: ")

    def log_text(self):
        return pathlib.Path(self.log.name).read_text()

    def _wait(self, pattern):
        for _ in range(READY_SECONDS * 20):
            found = re.search(pattern, self.log_text())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"the server did not start:\n{self.log_text()}")

    def metric(self, name, label=""):
        """The sum of a metric over those of its labels that contain `label`."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(re.escape(name) + r"[{ ]", line) and label in line)

    def stop(self):
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.log.close()

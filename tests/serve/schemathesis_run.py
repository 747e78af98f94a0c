#!/usr/bin/env python3
"""Property-based requests made from /openapi.json by `schemathesis` from PyPI: no 5xx, documented answers only.

  schemathesis_run.py --server BINARY --venv FOLDER [--model FOLDER] [--examples N]

With --model the server is `loopspec serve`, else the one with made-up tokens.
"""

import argparse
import pathlib
import subprocess
import sys

from client_support import FakeServer, inside_venv
from real_server import RealServer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--model")
    parser.add_argument("--examples", type=int, default=200)
    options = parser.parse_args()
    inside_venv(options.venv, ["schemathesis>=4"], "schemathesis")
    command = [
        pathlib.Path(options.venv).resolve() / "bin" / "schemathesis", "run", "--phases", "examples,coverage,fuzzing",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples", str(options.examples), "--request-timeout", "300", "--seed", "1", "--generation-database", "none", "--no-color",
        "--suppress-health-check", "too_slow"]  # how long it takes to make up requests depends on the machine
    # Short answers: what is tested is what may be asked.
    start = (lambda: RealServer(options.server, options.model, "--max-tokens", 8)) if options.model else (lambda: FakeServer(options.server))
    with start() as server:
        # It leaves notes where it runs.
        result = subprocess.run([*command, server.url + "/openapi.json"], cwd=options.venv, check=False)
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()

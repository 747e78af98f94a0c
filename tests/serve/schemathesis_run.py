#!/usr/bin/env python3
"""Property-based requests made from /openapi.json by `schemathesis` from PyPI: no 5xx, documented answers only.

  schemathesis_run.py --server BINARY --venv FOLDER [--examples N]
"""

import argparse
import pathlib
import subprocess
import sys

from client_support import FakeServer, inside_venv


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--examples", type=int, default=200)
    options = parser.parse_args()
    inside_venv(options.venv, ["schemathesis>=4"], "schemathesis")
    command = [
        pathlib.Path(options.venv) / "bin" / "schemathesis", "run", "--phases", "examples,coverage,fuzzing",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples", str(options.examples), "--seed", "1", "--generation-database", "none", "--no-color"]
    with FakeServer(options.server) as server:
        result = subprocess.run([*command, server.url + "/openapi.json"], check=False)
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""examples/python/agent.py against `loopspec serve` on a demo model, which tells stories and is no agent: the tool is called since it must be, with
arguments that are valid, its result goes back, and the agent ends with words.

  agent_example.py --server BINARY --model FOLDER --example FILE
"""

import argparse
import re
import subprocess
import sys

from real_server import RealServer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--example", required=True)
    options = parser.parse_args()
    with RealServer(options.server, options.model, "--api-key", "a-key") as server:
        command = [sys.executable, options.example, "--url", server.url, "--key", "a-key", "--turns", "3", "--max-tokens", "300", "--must-call"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert result.returncode == 0, result.stderr
        assert server.metric("loopspec:http_responses_total", 'code="4') == 0, "a 4xx"
    calls = re.findall(r"add\((\d+), (\d+)\) = (\d+)", result.stdout)
    assert calls and all(int(a) + int(b) == int(total) and max(int(a), int(b)) <= 999 for a, b, total in calls), result.stdout
    turns = re.findall(r"turn \d+: (\d+) tokens in, (\d+) of them found computed", result.stdout)
    assert len(turns) >= 2 and int(turns[1][1]) > 0, result.stdout
    assert result.stdout.rsplit("found computed", 1)[1].strip(), result.stdout
    print(result.stdout)


if __name__ == "__main__":
    main()

"""Streams a story and says how it was decoded.

    python examples/python/tell_story.py models/ouro-demo
"""

import sys

from loopspec import Engine


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: tell_story.py MODEL_FOLDER")
    with Engine(sys.argv[1]) as engine:
        stream = engine.stream([{"role": "user", "content": "Tell me a story about a cat."}], max_tokens=100)
        for token in stream:
            print(token.text, end="", flush=True)
        statistics = stream.output.statistics
    print(f"\n{statistics.decoded_tokens} tokens, {statistics.tokens_per_second:.0f} per second, gamma {statistics.gamma:.2f}")


if __name__ == "__main__":
    main()

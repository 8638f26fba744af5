"""Nine cached Hamilton nodes in a row: what a no-op run of nine stages costs there. Run by the environment that has Hamilton.

python nine_nodes.py CACHE ROUNDS      prints the seconds of each execution in this process, as JSON
"""

from __future__ import annotations

import json
import sys
import time


def first() -> int:
    return 1


def second(first: int) -> int:
    return first + 1


def third(second: int) -> int:
    return second + 1


def fourth(third: int) -> int:
    return third + 1


def fifth(fourth: int) -> int:
    return fourth + 1


def sixth(fifth: int) -> int:
    return fifth + 1


def seventh(sixth: int) -> int:
    return sixth + 1


def eighth(seventh: int) -> int:
    return seventh + 1


def ninth(eighth: int) -> int:
    return eighth + 1


if __name__ == "__main__":
    import nine_nodes
    from hamilton import driver

    cached = driver.Builder().with_modules(nine_nodes).with_cache(path=sys.argv[1]).build()
    seconds = []
    for _ in range(int(sys.argv[2])):
        begun = time.perf_counter()
        assert cached.execute(["ninth"]) == {"ninth": 9}
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds))

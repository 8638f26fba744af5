"""The loss of a language model and its gradients, plainly and in chunks: seconds and memory on the CPU.

    python -m tests.bench.bench_loss [--vocabulary 128000] [--rows 2048] [--width 256] [--supervised 1.0] [--chunks 32]

Each case has a process of its own, one thread. seconds: of the processor, the median of five; held: by how much the
process's peak of resident memory exceeds what was resident with weights and inputs, gradients included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from tests.conftest import PROJECT
from tests.training.memory.measured_memory import reset, resident


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    import torch

    from trnflow.tasks.training.chunked_loss import ChunkedLoss
    from trnflow.tasks.training.losses import loss_sum

    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = max(1, arguments.width // 4, (arguments.chunk << 20) // (4 * arguments.vocabulary))
    dtype = getattr(torch, arguments.dtype)
    hidden = torch.randn(arguments.rows, arguments.width, dtype=dtype, requires_grad=True)
    weight = (torch.randn(arguments.vocabulary, arguments.width) / 16).to(dtype).requires_grad_()
    targets = torch.randint(arguments.vocabulary, (arguments.rows,), dtype=torch.int32)
    targets[int(arguments.rows * arguments.supervised) :] = -100
    seconds, before = [], reset()
    for _ in range(arguments.times):
        hidden.grad = weight.grad = None
        begun = time.process_time()
        if arguments.way == "plain":
            loss = loss_sum(torch.nn.functional.linear(hidden, weight).float(), targets)
        else:
            at = (targets >= 0).nonzero()[:, 0]
            loss = ChunkedLoss.apply(
                hidden[at], weight, None, targets[at], lambda logits, to: loss_sum(logits.float(), to), size
            )
        loss.backward()
        seconds.append(time.process_time() - begun)
    return {"loss": loss.item(), "seconds": statistics.median(seconds), "held": resident("VmHWM") - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"vocabulary": 128_000, "rows": 2048, "width": 256, "times": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--supervised", type=float, default=1.0, help="share of positions with a target")
    parser.add_argument("--chunks", default="32", help="MiB of a chunk's fp32 logits, several with commas")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    for name in ("way", "dtype"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--chunk", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments)))
        return
    print(f"{'dtype':9} {'way':>12} {'seconds':>8} {'MiB':>6} {'loss':>14}")
    ways = [("plain", 0), *(("chunks", int(size)) for size in arguments.chunks.split(","))]
    for dtype in arguments.dtypes.split(","):
        for way, size in ways:
            command = [sys.executable, "-m", "tests.bench.bench_loss", *sys.argv[1:], "--way", way, "--dtype", dtype]
            environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # a freed tensor is resident no longer
            out = subprocess.check_output([*command, "--chunk", str(size)], cwd=PROJECT, env=environ, text=True)
            told = json.loads(out.splitlines()[-1])
            print(
                f"{dtype:9} {way:>6} {size or '':>5} {told['seconds']:8.2f} {told['held'] / 2**20:6.0f} {told['loss']:14.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

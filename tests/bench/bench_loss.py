"""The loss of a language model and its gradients, plainly and in chunks: seconds and memory on the CPU.

    python -m tests.bench.bench_loss [--engine native] [--vocabulary 128000] [--rows 2048] [--width 256] [--supervised 1.0]
        [--chunks 32]

Each case has a process of its own, one thread. seconds: of the processor, the median of five; held: by how much the
process's peak of resident memory exceeds what was resident with weights and inputs, gradients included. Of engine xla
neither counts the first two times, which compile.
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

    from trnflow.tasks.training import chunked_loss as native
    from trnflow.tasks.training.losses import loss_sum

    torch.set_num_threads(1)
    finish, device = (lambda: None), "cpu"
    if arguments.engine == "xla":
        import torch_xla

        from trnflow.tasks.training.xla import chunked_loss as traced

        finish, device = (lambda: torch_xla.sync(wait=True)), torch_xla.device()
    torch.manual_seed(0)
    size = max(1, arguments.width // 4, (arguments.chunk << 20) // (4 * arguments.vocabulary))
    dtype = getattr(torch, arguments.dtype)
    hidden = torch.randn(arguments.rows, arguments.width, dtype=dtype)
    weight = (torch.randn(arguments.vocabulary, arguments.width) / 16).to(dtype)
    targets = torch.randint(arguments.vocabulary, (arguments.rows,), dtype=torch.int32)
    targets[int(arguments.rows * arguments.supervised) :] = -100
    hidden, weight, targets = (tensor.to(device) for tensor in (hidden, weight, targets))
    finish()

    def score(logits: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return loss_sum(logits.float(), to)

    seconds = []
    for number in range(arguments.times + 2):
        if number == 2:
            time.sleep(1)  # XLA frees a run's buffers a moment after its results are there
            seconds, before = [], reset()
        begun = time.process_time()
        leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        if arguments.way == "plain":
            loss = score(torch.nn.functional.linear(*leaves), targets)
        elif arguments.engine == "native":
            at = (targets >= 0).nonzero()[:, 0]
            loss = native.ChunkedLoss.apply(leaves[0][at], leaves[1], None, targets[at], score, size)
        else:
            loss = traced.ChunkedLoss.apply(leaves[0][None], leaves[1], None, None, None, targets[None], score, size)
        loss.backward()
        finish()
        loss.item()
        seconds.append(time.process_time() - begun)
        del leaves
    return {"loss": loss.item(), "seconds": statistics.median(seconds), "held": resident("VmHWM") - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"vocabulary": 128_000, "rows": 2048, "width": 256, "times": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--engine", choices=["native", "xla"], default="native")
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
            environ = {
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": "65536",
                "PJRT_DEVICE": "CPU",
            }  # a freed tensor is resident no longer
            out = subprocess.check_output([*command, "--chunk", str(size)], cwd=PROJECT, env=environ, text=True)
            told = json.loads(out.splitlines()[-1])
            print(
                f"{dtype:9} {way:>6} {size or '':>5} {told['seconds']:8.2f} {told['held'] / 2**20:6.0f} {told['loss']:14.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""What AWS's SDK asks of `docker` in its local mode, with Linux namespaces for containers. Not Docker: images are not looked at.

python -m tests.helpers.docker_stand_in compose version
python -m tests.helpers.docker_stand_in compose -f FILE up --build --abort-on-container-exit
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

START = """\
mount --make-rprivate / && mount -t proc proc /proc && mkdir -p /opt/ml && mount --bind "$1" /opt/ml || exit 99
hostname "$2"; shift 2
while [ "$1" != -- ]; do mkdir -p "$2" && mount --bind "$1" "$2" || exit 99; shift 2; done
shift; cd /opt/ml; exec "$@"
"""
SPACE = ("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c", START, "sh")


def run(name: str, service: dict[str, Any], folder: str) -> int:
    """Run a service of a compose file: its command, volumes and environment. Its /opt/ml is `folder`."""
    volumes = [volume.removesuffix(":z").split(":") for volume in service["volumes"]]
    for host, _ in volumes:
        Path(host).mkdir(parents=True, exist_ok=True)
    # a folder before what lies in it
    binds = [path for pair in sorted(volumes, key=lambda pair: len(pair[1])) for path in pair]
    environ = dict(line.split("=", 1) for line in service["environment"]) | {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [*SPACE, folder, name, *binds, "--", *service["entrypoint"]], env=environ, stdin=subprocess.DEVNULL
    ).returncode


def main(*arguments: str) -> int:
    if arguments == ("compose", "version"):
        print("Docker Compose version v2.30.0")
        return 0
    assert arguments[:2] == ("compose", "-f") and arguments[3] == "up", arguments
    ((name, service),) = yaml.safe_load(Path(arguments[2]).read_text())["services"].items()
    with tempfile.TemporaryDirectory() as folder:
        code = run(name, service, folder)
    print(f"{name} exited with code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

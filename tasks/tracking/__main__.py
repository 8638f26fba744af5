"""`python -m tasks.tracking HOME [RUN]`: follow the spool of a run; without a run, upload what earlier runs left."""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.tracking.shipper import follow, ship_pending

if len(sys.argv) > 2:
    follow(sys.argv[1], sys.argv[2])
else:
    ship_pending(Path(sys.argv[1]))

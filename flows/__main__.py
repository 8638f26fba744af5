"""`python -m flows`: the command line."""

import sys

from flows.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""Run the command line: `python -m trnflow run demo` is `trnflow run demo`."""

import sys

from trnflow.flows.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

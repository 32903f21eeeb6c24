"""``python -m pytest_rlperf.cli`` is ``rlperf``."""

import sys

from pytest_rlperf.cli import main

if __name__ == "__main__":
    sys.exit(main())

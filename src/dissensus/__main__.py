"""`python -m dissensus` is the command `dissensus`."""

import sys

from dissensus.cli import main

if __name__ == "__main__":
    sys.exit(main())

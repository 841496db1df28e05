"""The command ``python -m meshcomm``."""

import sys

from meshcomm.tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m batchbridge`."""

import sys

from batchbridge.cli import main

sys.exit(main())

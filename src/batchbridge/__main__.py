"""`python -m batchbridge`."""

import sys

from batchbridge.cli.main import main

sys.exit(main())

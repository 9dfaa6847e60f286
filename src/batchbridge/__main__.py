"""`python -m batchbridge`.

Its own file: Python starts it by this name.
"""

import sys

from batchbridge.cli.main import main

sys.exit(main())

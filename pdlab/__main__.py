"""`python -m pdlab` is the command line, where `pdlab` itself is not on the path."""

import sys

from pdlab.cli import main

sys.exit(main())

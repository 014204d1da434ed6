"""`python -m khop`: the `khop` command, if its script is not on the path."""

import sys

from khop.cli.main import main

sys.exit(main())

"""`python -m khop`: the `khop` command, for environments without its script."""

import sys

from khop.cli.main import main

sys.exit(main())

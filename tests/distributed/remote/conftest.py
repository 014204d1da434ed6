"""Lets tests of graph servers share what they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Puts this folder's helpers on the path; the import mode leaves it off."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""The version of this package; ``setup.cfg`` reads it from here."""

from typing import Final

VERSION: Final = "0.1.0"

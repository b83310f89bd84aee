"""The fixtures of this folder."""

from tests.tools.shared import _hurry, served, served_dir, served_settings

__all__ = ["_hurry", "served", "served_dir", "served_settings"]

"""Flags, and the parsers of their values; options declare their flags."""

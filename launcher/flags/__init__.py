"""What a flag is, and how the text of its value is read; options declare their flags."""

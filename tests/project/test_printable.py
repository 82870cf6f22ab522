"""What is printed of text from elsewhere."""

import pytest
from ft_run.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        ("plain ü …", "plain ü …", "plain ü …"),
        ("a\tb", "a\tb", "a\tb"),
        ("a\nb", "a\\nb", "a\nb"),
        ("a\r\nb", "a\\r\\nb", "a\\r\nb"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J\x00\x7f", "\\x9b2J\\x00\\x7f", "\\x9b2J\\x00\\x7f"),
        ("\u2028", "\u2028", "\u2028"),
    ],
)
def test_what_steers_a_terminal_becomes_visible(text: str, line: str, lines: str) -> None:
    assert printable(text) == line
    assert printable_lines(text) == lines

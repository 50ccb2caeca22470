"""The colours that tell things apart in figures."""

from __future__ import annotations

from course_utils.show import colours

ORANGE, BLUE = colours.ORANGE, colours.BLUE
INK, NOTE = colours.GREY_22, colours.GREY_55

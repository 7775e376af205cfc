"""A few shapes as SVG: all that the picture of a plan needs of a drawing library."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

FONT = "font-family:Helvetica,Arial,'DejaVu Sans',sans-serif"


class Drawing:
    """Shapes in the order in which they are drawn; lengths in pixels, y goes down.

    Args:
        width: Of the whole.
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "none") -> None:
        """A rectangle by its upper left corner."""
        self._add("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), fill=fill, stroke=stroke)

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1.0) -> None:
        """A straight line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width)

    def circle(self, x: float, y: float, radius: float, fill: str, *, opacity: float = 1.0) -> None:
        """A disc."""
        self._add("circle", cx=x, cy=y, r=radius, fill=fill, fill_opacity=opacity)

    def text(
        self, x: float, y: float, content: str, *, size: float = 11, fill: str = "#222", anchor: str = "start"
    ) -> None:
        """A line of text, its baseline at y; `anchor`: start, middle or end."""
        attributes = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill={quoteattr(fill)} text-anchor="{anchor}"'
        self._shapes.append(f"<text {attributes}>{escape(content)}</text>")

    def document(self, height: float) -> str:
        """All of it, on white."""
        size = f'width="{self.width:g}" height="{height:g}" viewBox="0 0 {self.width:g} {height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{FONT}">'
        return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *self._shapes, "</svg>"]) + "\n"

    def _add(self, kind: str, **attributes: float | str) -> None:
        shown = (
            f'{name.replace("_", "-")}="{value:.2f}"'
            if isinstance(value, float | int)
            else f"{name}={quoteattr(value)}"
            for name, value in attributes.items()
        )
        self._shapes.append(f"<{kind} {' '.join(shown)}/>")


def powers_of_two(top: int) -> Iterable[int]:
    """Those up to a size, for the ticks of a logarithmic axis."""
    return (1 << exponent for exponent in range(max(top, 1).bit_length()))

# SPDX-License-Identifier: BSD-3-Clause
"""Pages of plots: one HTML file without scripts or network, for dark and light screens, and for phones.

Python's standard library is enough. benchmarks/collectives/page and scripts/study make their pages with it,
scripts/results_plots and scripts/design_pictures their pictures. A curve's name has one colour on the whole page: that
of its place in the list `names`.
"""
import html
import math
from pathlib import Path

COLORS = 8
WIDTH, HEIGHT = 620, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 34, 12, 34
MOST_DOTS = 40  # curves with more points have no dots

STYLE = (Path(__file__).parent / "plots.css").read_text()
# Of pictures, which are on light ground everywhere: the colours of light screens.
PICTURE_STYLE = STYLE[STYLE.index(":root"):STYLE.index("}") + 2] + (Path(__file__).parent / "pictures.css").read_text()


def size_name(size):
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def time_name(seconds):
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds > 0.0 else "0"


def ticks(low, high):
    """Powers of ten; if they are few, also twice and five times each of them."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    return [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]


def even_ticks(low, high, most=6):
    """At most `most` multiples of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-300) / most))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * step) <= most)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Scale:
    """From values to places on an axis, 0 to 1. `marks` are the values that are written, each as text(value)."""

    def __init__(self, low, high, marks, text, log=False):
        self.low, self.high, self.marks, self.text, self.log = low, high, marks, text, log

    def place(self, value):
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def style_of(index):
    return f'style="color:var(--c{index % COLORS})"', ' class="dash"' if index >= COLORS else ""


def keys(shown, names, more=""):
    """The legend of the curves `shown`; `more` are further entries."""
    entries = []
    for name in shown:
        color, dash = style_of(names.index(name))
        entries.append(f"<li><i{dash} {color}></i><span>{html.escape(name)}</span></li>")
    return f'<ul class="keys">{"".join(entries)}{more}</ul>'


def drawing(curves, names, x, y, ideal=()):
    """The grid, marks and curves of a plot of WIDTH x HEIGHT, as SVG elements. The arguments are those of `plot`."""

    def at_x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * x.place(value)

    def at_y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - y.place(value))

    out = []
    for v in y.marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(v):.1f}" y2="{at_y(v):.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{at_y(v) + 4:.1f}" text-anchor="end">{y.text(v)}</text>')
    for v in x.marks:
        out.append(f'<text x="{at_x(v):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{x.text(v)}</text>')
    if ideal:
        line = " L".join(f"{at_x(a):.1f} {at_y(b):.1f}" for a, b in ideal)
        out.append(f'<g style="color:var(--soft)"><path class="dash" d="M{line}"/></g>')
    for name, points in curves.items():
        color, dash = style_of(names.index(name))
        line = " L".join(f"{at_x(p[0]):.1f} {at_y(p[1]):.1f}" for p in points)
        spreads = "".join(f'<path d="M{at_x(p[0]):.1f} {at_y(p[2]):.1f} V{at_y(p[3]):.1f}"/>'
                          for p in points if len(p) > 2 and p[2] < p[3])
        dots = "".join(f'<circle cx="{at_x(p[0]):.1f}" cy="{at_y(p[1]):.1f}" r="2.5">'
                       f"<title>{html.escape(name)}, {x.text(p[0])}: {y.text(p[1])}</title></circle>"
                       for p in points) if len(points) <= MOST_DOTS else ""
        out.append(f'<g {color}><path{dash} d="M{line}"/>{spreads}{dots}</g>')
    return "".join(out)


def plot(title, curves, names, x, y, ideal=(), note=""):
    """A card with a plot. Curves: name -> points (x, y) or (x, y, least y, largest y).

    x and y are Scales. `ideal` are points of a dashed grey line, `note` is a sentence below the legend.
    """
    more = ""
    if ideal:
        more = '<li><i class="dash" style="color:var(--soft)"></i><span>ideal</span></li>'
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return (f'<section><h2>{html.escape(title)}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
            f"{drawing(curves, names, x, y, ideal)}</svg>{keys(curves, names, more)}{note}</section>")


def page(title, body, more_style=""):
    """A whole page: its cards are `body`, in HTML."""
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(title)}</title><style>{STYLE}{more_style}</style>{body}</html>\n")


def picture(title, width, height, body):
    """An SVG file on a light background, for documents. Where it is shown narrow, its text is a third larger."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{html.escape(title)}</title><style>{PICTURE_STYLE}</style>'
            f'<rect width="{width}" height="{height}" fill="#fff"/>{body}</svg>\n')

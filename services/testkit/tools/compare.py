"""Draws the result of `just compare` as an SVG file: compare.py RESULT.json PICTURE.svg

`just compare-picture` runs it. The same result gives the same file.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
# Without these settings, identifiers in the file would be random.
matplotlib.rcParams["svg.hashsalt"] = "pillion"
matplotlib.rcParams["svg.fonttype"] = "path"

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

SIDES = {"none": ("no admission, written by the author", "#808080", "s"), "MutatingAdmissionPolicy": ("MutatingAdmissionPolicy", "#fa6400", "^"), "Pillion": ("Pillion", "#1f60c4", "o")}
NUMBER = FuncFormatter(lambda value, _: f"{value:g}")


def series(result, side, key):
    """Returns the numbers of profiles or policies, and a figure for each, for real creation."""
    points = [
        (cell["applying"], cell[key])
        for cell in result["cells"]
        if cell["stored"] and cell["admission"] == side and cell["idle"] == 0 and cell["applying"] > 0 and cell.get(key) is not None
    ]
    # A logarithmic scale has no zero. A cost below the resolution of the measurement can be negative.
    return zip(*[(count, value) for count, value in sorted(points) if value > 0])


def panel(axes, title, lines):
    """Draws lines: the side, the points, and the style."""
    for side, (counts, values), style in lines:
        label, color, marker = SIDES[side]
        is_main = style == "-"
        axes.plot(counts, values, style, color=color, marker=marker if is_main else None, label=label if is_main else None, linewidth=1.8 if is_main else 1)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([1, 10, 100, 1000]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBER)
    axes.yaxis.set_major_formatter(NUMBER)
    axes.set_xlabel("profiles or policies that apply to the pod")
    axes.set_ylabel("ms per pod")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)


def main():
    result = json.loads(pathlib.Path(sys.argv[1]).read_text().strip().splitlines()[-1])
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    costs = [(side, tuple(series(result, side, "above_bare_ms")), "-") for side in SIDES]
    panel(left, "CPU time above the bare pod: API server and replicas", [line for line in costs if line[1]])
    latencies = [(side, tuple(series(result, side, key)), style) for side in SIDES for key, style in (("p50_ms", "-"), ("p99_ms", ":"))]
    panel(right, "latency of a creation: p50, and p99 (dotted)", [line for line in latencies if line[1]])
    figure.suptitle(f"Kubernetes {result['kubernetes']}, {result['machine']}, {result['date']}", fontsize=8, color="#555555")
    figure.savefig(sys.argv[2], metadata={"Date": None, "Creator": None})


main()

"""Renders each Grafana dashboard of this folder to a picture, with the data of a Prometheus.

`just dashboard-pictures` runs it with the data of a real cluster under load. With another Prometheus:

    python3 -m venv /tmp/pictures && /tmp/pictures/bin/pip install matplotlib
    /tmp/pictures/bin/python dashboards/pictures.py --url http://localhost:9090 --minutes 60 --window 2m

It evaluates the queries of each panel through Prometheus' HTTP API, as Grafana does, and draws the panels in the dashboard's
grid. It prints the panels without data.
"""

import argparse
import datetime
import io
import json
import math
import pathlib
import re
import textwrap
import time
import urllib.error
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")

import matplotlib.dates
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent
# Size of a cell of Grafana's grid in inches, and the pixels of an inch.
WIDTH, HEIGHT, DPI = 0.6, 0.29, 75
MOST_BYTES = 150_000
COLORS = {"green": "#37872d", "orange": "#fa6400", "red": "#c4162a", "blue": "#1f60c4", "text": "#30353d"}
PALETTE = ["#5aa454", "#e0b400", "#1f60c4", "#fa6400", "#c4162a", "#8f3bb8", "#3d9da1", "#808080", "#a16a3c", "#d683ce", "#96d98d"]
MOST_LEGENDS = 9
TIME = matplotlib.dates.DateFormatter("%H:%M")


def scaled(value, steps):
    """Formats a value with the largest unit that is not above it. `steps`: factors and units, largest first."""
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    factor, unit = steps[-1]
    return f"{value / factor:.3g}{unit}"


def formatted(value, unit):
    """Formats a value with a unit of Grafana."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0 and unit not in ("s", "percentunit"):
        return "0" + {"reqps": " req/s", "ops": " ops/s", "bytes": " B"}.get(unit, "")
    if unit == "percentunit":
        percent = value * 100
        return f"{percent:.4g}%"
    if unit == "s":
        if value == 0:
            return "0 s"
        steps = [(86400 * 365, " years"), (86400, " days"), (3600, " h"), (60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " µs")]
        return scaled(value, steps)
    if unit == "bytes":
        return scaled(value, [(2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")])
    suffix = {"reqps": " req/s", "ops": " ops/s"}.get(unit, "")
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M{suffix}"
    return f"{value:.3g}{suffix}" if abs(value) < 1000 else f"{value:,.0f}{suffix}"


class Source:
    """The data of a Prometheus within a range of time."""

    def __init__(self, url, end, minutes, window):
        self.url, self.end = url.rstrip("/"), end
        self.start, self.window, self.range = self.end - 60 * minutes, window, f"{round(minutes * 60)}s"
        self.step = max(1, round(60 * minutes / 240))

    def filled(self, query):
        """Fills in the variables of a dashboard: everything is selected."""
        values = {
            "__rate_interval": self.window, "__range": self.range, "cluster_label": "cluster",
            "job": ".+", "instance": ".+",
        }
        return re.sub(r"\$(\w+)", lambda found: values.get(found.group(1), ".*"), query)

    def ask(self, query, instant):
        parameters = {"query": self.filled(query)}
        if instant:
            path, more = "query", {"time": self.end}
        else:
            path, more = "query_range", {"start": self.start, "end": self.end, "step": self.step}
        data = urllib.parse.urlencode(parameters | more).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data) as response:
                result = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{query}\n{error.read().decode()}") from error
        for series in result:
            points = series["values"] if "values" in series else [series["value"]]
            yield series["metric"], [(float(at), float(value)) for at, value in points]

    def series(self, panel):
        """Returns the legend, the labels and the points of each series of a panel."""
        found = []
        for target in panel["targets"]:
            for labels, points in self.ask(target["expr"], target["instant"]):
                legend = target["legendFormat"]
                if legend == "__auto":
                    legend = ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__")
                else:
                    legend = re.sub(r"{{(\w+)}}", lambda name: labels.get(name.group(1), ""), legend)
                if any(not math.isnan(value) for _, value in points):
                    found.append((legend.strip() or "value", labels, points))
        return found


def threshold_color(panel, value):
    color = "text"
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS.get(color, color)


def mapped(panel, value):
    """Returns the text and the color that a panel has for a value, or `None`."""
    for mapping in panel["fieldConfig"]["defaults"]["mappings"]:
        option = mapping["options"].get(f"{value:g}")
        if option:
            color = option["color"]
            return option["text"], None if color == "transparent" else COLORS.get(color, color)
    return None


def frame(figure, panel, rows):
    """Draws the frame and the title of a panel. Returns the axes for its content."""
    place = panel["gridPos"]
    left, width = place["x"] / 24, place["w"] / 24
    top, height = 1 - (place["y"] + 2) / rows, place["h"] / rows
    gap_x, gap_y = 0.05 / (24 * WIDTH), 0.05 / (rows * HEIGHT)
    box = [left + gap_x, top - height + gap_y, width - 2 * gap_x, height - 2 * gap_y]
    back = figure.add_axes(box)
    back.set_xticks([])
    back.set_yticks([])
    back.set_facecolor("white")
    for spine in back.spines.values():
        spine.set_color("#d8d9da")
    wide = max(20, int(place["w"] * WIDTH * 13))
    title = textwrap.shorten(panel["title"], wide, placeholder="…")
    back.text(0.08 / (place["w"] * WIDTH), 1 - 0.08 / (place["h"] * HEIGHT), title, va="top", fontsize=9, weight="bold", color="#24292e")
    return box, place


def content(figure, box, place, left=0.5, bottom=0.25, right=0.15, top=0.35):
    """Returns the axes for the content of a panel, with these margins in inches."""
    width, height = place["w"] * WIDTH, place["h"] * HEIGHT
    return figure.add_axes([
        box[0] + box[2] * left / width, box[1] + box[3] * bottom / height,
        box[2] * (1 - (left + right) / width), box[3] * (1 - (top + bottom) / height),
    ])


def plain(axes):
    axes.axis("off")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def draw_stat(figure, box, place, panel, series):
    axes = content(figure, box, place, 0.1, 0.1)
    plain(axes)
    value = series[0][2][-1][1]
    text, color = mapped(panel, value) or (formatted(value, panel["fieldConfig"]["defaults"]["unit"]), threshold_color(panel, value))
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=18 if len(text) < 12 else 14, color=color or COLORS["text"], weight="bold")


def draw_lines(figure, box, place, panel, series):
    unit, custom = panel["fieldConfig"]["defaults"]["unit"], panel["fieldConfig"]["defaults"]["custom"]
    per_row = max(1, int(place["w"] * WIDTH / 1.55))
    # The series with the largest values are the ones to see.
    series.sort(key=lambda each: -max((value for _, value in each[2] if not math.isnan(value)), default=0))
    names = [name if len(name) <= 27 else name[:26] + "…" for name, _, _ in series[:MOST_LEGENDS]]
    rows = math.ceil(len(names) / per_row)
    axes = content(figure, box, place, 0.75, 0.3 + 0.16 * rows)
    handles = []
    if custom.get("stacking", {}).get("mode") == "normal":
        times = sorted({at for _, _, points in series for at, _ in points})
        moments = [datetime.datetime.fromtimestamp(at, datetime.timezone.utc) for at in times]
        values = []
        for _, _, points in series:
            known = dict(points)
            values.append([0 if math.isnan(known.get(at, 0)) else known.get(at, 0) for at in times])
        colors = [PALETTE[index % len(PALETTE)] for index in range(len(series))]
        handles = axes.stackplot(moments, values, colors=colors, alpha=0.7, linewidth=0)
    else:
        for index, (_, _, points) in enumerate(series):
            moments = [datetime.datetime.fromtimestamp(at, datetime.timezone.utc) for at, _ in points]
            handles += axes.plot(moments, [value for _, value in points], color=PALETTE[index % len(PALETTE)], linewidth=1.1)
        low, high = axes.get_ylim()
        if low >= 0 or low > -0.06 * high:
            axes.set_ylim(bottom=0 if unit != "percentunit" or low < 0.5 else None)
    if all(value == 0 or math.isnan(value) for _, _, points in series for _, value in points):
        axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if unit == "bytes":
        axes.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(axes.get_ylim()[1], 4) / 4))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(round(value, 9), unit)))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(TIME)
    axes.tick_params(labelsize=6.5, length=0, colors="#6e7681")
    axes.grid(color="#ececec", linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(series) > MOST_LEGENDS:
        names[-1] += f"  (+{len(series) - MOST_LEGENDS})"
    height = place["h"] * HEIGHT
    figure.legend(
        handles[:len(names)], names, loc="lower left", bbox_to_anchor=(box[0] + 0.003, box[1] + box[3] * 0.01 / height), ncol=per_row,
        fontsize=6.5, frameon=False, handlelength=1, handletextpad=0.4, columnspacing=0.9, labelspacing=0.25, borderpad=0.2,
    )


def draw_states(figure, box, place, panel, series):
    axes = content(figure, box, place, 1.35, 0.3)
    for row, (name, _, points) in enumerate(reversed(series)):
        begin = 0
        for index in range(1, len(points) + 1):
            if index < len(points) and points[index][1] == points[begin][1]:
                continue
            value = points[begin][1]
            text, color = mapped(panel, value) or (f"{value:g}", COLORS["blue"])
            last = points[index][0] if index < len(points) else points[-1][0]
            start, end = (matplotlib.dates.date2num(datetime.datetime.fromtimestamp(at, datetime.timezone.utc)) for at in (points[begin][0], last))
            if color:
                axes.barh(row, end - start, left=start, height=0.8, color=color, alpha=0.75)
                if last - points[begin][0] > 0.15 * (points[-1][0] - points[0][0]):
                    axes.text((start + end) / 2, row, text, ha="center", va="center", fontsize=6.5, color="white")
            begin = index
    axes.set_yticks(range(len(series)), [name[:22] for name, _, _ in reversed(series)])
    axes.set_ylim(-0.6, len(series) - 0.4)
    times = [at for _, _, points in series for at, _ in points]
    axes.set_xlim(*(datetime.datetime.fromtimestamp(at, datetime.timezone.utc) for at in (min(times), max(times) + 1)))
    axes.xaxis_date()
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(TIME)
    axes.tick_params(labelsize=6.5, length=0, colors="#6e7681")
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_table(figure, box, place, panel, series):
    axes = content(figure, box, place, 0.15, 0.1)
    plain(axes)
    names = sorted({name for _, labels, _ in series for name in labels if name != "__name__"})
    lines = [[labels.get(name, "") for name in names] + [formatted(points[-1][1], panel["fieldConfig"]["defaults"]["unit"])] for _, labels, points in series]
    lines.sort(key=lambda line: line[:-1])
    fits = int((place["h"] * HEIGHT - 0.5) / 0.17) - 1
    shown = lines[:fits]
    for row, line in enumerate([[*names, "Value"], *shown]):
        for column, text in enumerate(line):
            wide = int(place["w"] * WIDTH * 13 / len(line))
            axes.text(
                column / len(line), 1 - (row + 0.5) / (fits + 1), text[:wide], va="center", fontsize=7,
                weight="bold" if row == 0 else "normal", color=COLORS["text"],
            )


def draw_bars(figure, box, place, panel, series):
    axes = content(figure, box, place, 1.75, 0.15, 0.7)
    series = sorted(series, key=lambda each: each[2][-1][1])[-12:]
    values = [points[-1][1] for _, _, points in series]
    axes.barh(range(len(series)), values, color=PALETTE[0], height=0.65)
    for row, value in enumerate(values):
        axes.text(value, row, " " + formatted(value, panel["fieldConfig"]["defaults"]["unit"]), va="center", fontsize=7, color=COLORS["text"])
    axes.set_yticks(range(len(series)), [name[:28] for name, _, _ in series])
    axes.set_xlim(0, max([*values, 1]))
    axes.set_xticks([])
    axes.tick_params(labelsize=6.5, length=0, colors="#6e7681")
    for spine in axes.spines.values():
        spine.set_visible(False)


DRAW = {"stat": draw_stat, "timeseries": draw_lines, "state-timeline": draw_states, "table": draw_table, "bargauge": draw_bars}


def render(name, source, folder):
    """Draws a dashboard. Returns the titles of panels without data."""
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) + 2
    figure = plt.figure(figsize=(24 * WIDTH, rows * HEIGHT), dpi=DPI, facecolor="#f4f5f5")
    figure.text(0.006, 1 - 0.8 / rows, dashboard["title"], fontsize=13, weight="bold", va="center", color="#24292e")
    empty = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            figure.text(0.006, 1 - (panel["gridPos"]["y"] + 2.55) / rows, panel["title"], fontsize=10, va="center", color="#24292e")
            continue
        box, place = frame(figure, panel, rows)
        series = source.series(panel)
        if series:
            DRAW[panel["type"]](figure, box, place, panel, series)
        else:
            empty.append(panel["title"])
            axes = content(figure, box, place)
            plain(axes)
            axes.text(0.5, 0.5, "No data", ha="center", va="center", color="#8e8e8e", fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, facecolor=figure.get_facecolor())
    plt.close(figure)
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    path = folder / f"dashboard-{name}.png"
    image.save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{path} has {size} bytes, more than {MOST_BYTES}")
    print(f"{path}: {size} bytes" + (f", without data: {', '.join(empty)}" if empty else ""))


def main():
    parser = argparse.ArgumentParser(description="Renders the dashboards to pictures, with the data of a Prometheus.")
    parser.add_argument("names", nargs="*", help="dashboards, such as overview; default: all")
    parser.add_argument("--url", required=True, help="URL of the Prometheus")
    parser.add_argument("--minutes", type=float, default=60, help="the range of time to show; default: 60")
    parser.add_argument("--end", type=float, default=time.time(), help="the end of the range, as Unix time; default: now")
    parser.add_argument("--window", default="2m", help="the window of rates, at least four scrape intervals; default: 2m")
    parser.add_argument("--output", type=pathlib.Path, default=FOLDER.parent / "docs/images", help="folder of the pictures")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    source = Source(arguments.url, arguments.end, arguments.minutes, arguments.window)
    for name in arguments.names or sorted(path.stem for path in FOLDER.glob("*.json")):
        render(name, source, arguments.output)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: BSD-3-Clause
"""The page of scripts/study, and its table for a terminal. Rows are those of study.csv, as dictionaries."""
import html
import math
import statistics
from pathlib import Path

from plots import COLORS, Scale, even_ticks, page, plot, ticks, time_name

MOST_POINTS = 300  # of a curve of losses
PHASES = ("forward", "backward", "communication", "optimizer", "data")
STYLE = (Path(__file__).parent / "study_page.css").read_text()


# --- Numbers ----------------------------------------------------------------------------------------------------------


def baseline(rows):
    """(layout, ranks) of the first layout that ran on the smallest number of ranks, or None. Rows are in order."""
    done = [row for row in rows if row["state"] == "done"]
    least = min((row["ranks"] for row in done), default=0)
    return next(((row["layout"], row["ranks"]) for row in done if row["ranks"] == least), None)


class Configuration:
    """A layout on a number of ranks: its rows of all rounds."""

    def __init__(self, layout, ranks, rows):
        self.layout, self.ranks, self.all = layout, ranks, rows
        self.rows = [row for row in rows if row["state"] == "done"]
        self.name = f"{layout}, {ranks} rank{'s' * (ranks > 1)}"

    def values(self, column):
        return [row[column] for row in self.rows if row.get(column) is not None]

    def median(self, column, default=None):
        values = self.values(column)
        return statistics.median(values) if values else default

    def spread(self, column):
        """Median, least and largest over the rounds, or None."""
        values = self.values(column)
        return (statistics.median(values), min(values), max(values)) if values else None

    def columns(self, beginning):
        """Columns without the beginning of their names."""
        names = sorted({name for row in self.rows for name in row if name.startswith(beginning)})
        return [name.removeprefix(beginning) for name in names]


def configurations(settings, rows):
    """Those that have rows, by ranks and layout."""
    ranks = sorted({row["ranks"] for row in rows})
    found = [Configuration(layout, r, [row for row in rows if (row["layout"], row["ranks"]) == (layout, r)])
             for r in ranks for layout in settings["layouts"]]
    return [c for c in found if c.all]


def short(value):
    """1750000 -> 1.75M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def megabytes(value):
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}" if value < 1e3 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:.0f} B"


def percent(value):
    return f"{100 * value:.3g} %"


def listed(words):
    words = [str(word) for word in words]
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def differing_bytes(row):
    """The operations whose bytes of a step are not the plan's; what metrics themselves send is in no plan."""
    names = {name.removeprefix("planned_").removeprefix("payload_") for name in row
             if name.startswith(("payload_", "planned_payload_"))}
    names = {name for name in names if not name.startswith("world_") or f"planned_payload_{name}" in row}
    return {name for name in names if (row.get(f"payload_{name}") or 0) != (row.get(f"planned_payload_{name}") or 0)}


def differences(configuration):
    """Those of all rounds; also if there is no plan."""
    return {name for row in configuration.rows for name in differing_bytes(row)}


# --- The terminal's table ---------------------------------------------------------------------------------------------


def summary_text(settings, rows):
    """The medians over the rounds, with least and largest, as aligned text."""
    lines = [["layout", "ranks", "tokens/s", "least, largest", "efficiency", "step", "memory", "bytes"]]
    for c in configurations(settings, rows):
        if not c.rows:
            last = c.all[-1]
            lines.append([c.layout, str(c.ranks), f"{last['state']}, {last['code']}: {last.get('reason', '')}"[:100]])
            continue
        rate, efficiency = c.spread("tokens_per_second"), c.median("efficiency")
        failed = f", {len(c.all) - len(c.rows)} failed" if len(c.rows) < len(c.all) else ""
        lines.append([c.layout, str(c.ranks), f"{rate[0]:,.0f}", f"{rate[1]:,.0f}, {rate[2]:,.0f}",
                      "" if efficiency is None else percent(efficiency), time_name(c.median("rank_time_max")),
                      megabytes(c.median("memory_peak_max", 0)),
                      ("NOT AS PLANNED" if differences(c) else "as planned") + failed])
    widths = [max(len(line[i]) for line in lines if len(line) == 8 or i < 2) for i in range(8)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines)


# --- Parts of the page ------------------------------------------------------------------------------------------------


def bars(title, rows, parts, text, mark="", note=""):
    """A card of stacked bars. Rows: (label, {part: value}, value of the mark or None, words behind the bar)."""
    top = max([sum(values.values()) for _, values, _, _ in rows] + [m or 0 for _, _, m, _ in rows] + [1e-300])
    out = [f'<section><h2>{html.escape(title)}</h2><div class="bars">']
    for label, values, marked, words in rows:
        pieces = "".join(f'<i style="width:{100 * values[part] / top:.2f}%;background:var(--c{i % COLORS})" '
                         f'title="{html.escape(part)}: {text(values[part])}"></i>'
                         for i, part in enumerate(parts) if values.get(part))
        if marked is not None:
            pieces += f'<u style="left:calc({100 * marked / top:.2f}% - 1px)" title="{mark}: {text(marked)}"></u>'
        out.append(f'<div class="row"><b>{html.escape(label)}</b><div class="track">{pieces}</div>'
                   f"<span>{html.escape(words)}</span></div>")
    legend = "".join(f'<li><i style="color:var(--c{i % COLORS})"></i><span>{html.escape(part)}</span></li>'
                     for i, part in enumerate(parts) if any(values.get(part) for _, values, _, _ in rows))
    legend += f'<li><i class="mark"></i><span>{mark}</span></li>' if mark else ""
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return "".join(out) + f'</div><ul class="keys">{legend}</ul>{note}</section>'


def table(title, head, rows, note="", kind="all"):
    """A card, by default over the whole width. Cells are text; (text, class) has a class."""
    out = []
    for row in rows:
        cells = [cell if isinstance(cell, tuple) else (cell, "") for cell in row]
        out.append("<tr>" + "".join(f'<td class="{style}">{html.escape(words)}</td>' if style else
                                    f"<td>{html.escape(words)}</td>" for words, style in cells) + "</tr>")
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return (f'<section class="{kind}"><h2>{html.escape(title)}</h2><div class="scroll"><table>'
            f"<thead><tr>{names}</tr></thead><tbody>{''.join(out)}</tbody></table></div>{note}</section>")


def ranks_scale(ranks):
    first = f"{ranks[0]} rank{'s' * (ranks[0] > 1)}"
    return Scale(ranks[0], ranks[-1], ranks, lambda r: first if r == ranks[0] else str(r), log=True)


def log_scale(values, text):
    low, high = 0.8 * min(values), 1.25 * max(values)
    marks = ticks(low, high)
    return Scale(low, high, marks if len(marks) > 2 else even_ticks(low, high), text, log=True)


def even_scale(low, high, text):
    """A linear axis; its ends are the values'."""
    high = high if high > low else low + max(abs(low), 1e-300)
    return Scale(low, high, even_ticks(low, high), text)


def scaling_plots(settings, found, base):
    """tokens/s and efficiency over ranks; with one number of ranks, bars of tokens/s."""
    names = list(settings["layouts"])
    ranks = sorted({c.ranks for c in found})
    if len(ranks) == 1:
        rows = [(c.layout, {c.layout: c.median("tokens_per_second")}, None, spread_text(c.spread("tokens_per_second")))
                for c in found]
        return bars(f"Tokens/s on {ranks[0]} rank{'s' * (ranks[0] > 1)}", rows, names, lambda v: f"{v:,.0f}",
                    note="median of the rounds; in brackets the least and the largest")
    curves = {name: [(c.ranks, *c.spread("tokens_per_second")) for c in found if c.layout == name] for name in names}
    curves = {name: points for name, points in curves.items() if points}
    first = next(c for c in found if (c.layout, c.ranks) == base).median("tokens_per_second")
    ideal = [(ranks[0], first), (ranks[-1], first * ranks[-1] / ranks[0])]
    values = [v for points in curves.values() for p in points for v in p[1:]] + [v for _, v in ideal]
    parts = [plot("Tokens/s", curves, names, ranks_scale(ranks), log_scale(values, short), ideal,
                  f"ideal: {base[0]} on {base[1]} rank{'s' * (base[1] > 1)}, times the ranks")]
    curves = {name: [(c.ranks, *c.spread("efficiency")) for c in found if c.layout == name and c.spread("efficiency")]
              for name in curves}
    curves = {name: points for name, points in curves.items() if points}
    values = [p[3] for points in curves.values() for p in points]
    y = even_scale(0.0, 1.05 * max([1.0, *values]), lambda v: f"{100 * v:.0f} %")
    ideal = [(ranks[0], 1.0), (ranks[-1], 1.0)]
    parts.append(plot("Efficiency", curves, names, ranks_scale(ranks), y, ideal, "tokens/s per rank over the "
                      "baseline's in the same round; bars from the least to the largest of the rounds"))
    return "".join(parts)


def thinned(xs, values):
    """At most MOST_POINTS points: means of equally many losses, at the end of their steps."""
    pairs = [(x, value) for x, value in zip(xs, values) if math.isfinite(x) and math.isfinite(value)]
    each = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return [(pairs[min(i + each, len(pairs)) - 1][0], statistics.fmean(value for _, value in pairs[i : i + each]))
            for i in range(0, len(pairs), each)], each


def loss_plots(settings, found, base, read):
    """The loss over steps and over seconds: of each layout on its most ranks, and of the baseline."""
    most = {}
    for c in found:
        most[c.layout] = c
    names = [most[name].name if name in most else name for name in settings["layouts"]]
    shown = list(most.values()) + [c for c in found if (c.layout, c.ranks) == base and c not in most.values()]
    names += [c.name for c in shown if c.name not in names]
    by_step, by_second, notes = {}, {}, []
    for c in shown:
        steps = read(c.rows[0]["run"], "steps")
        if not steps.get("loss"):
            continue
        by_step[c.name], each = thinned(steps["step"], steps["loss"])
        ends, now = [], 0.0
        for seconds in steps["time_step"]:
            now += 0.0 if math.isnan(seconds) else seconds
            ends.append(now)
        by_second[c.name], _ = thinned(ends, steps["loss"])
        if len(set(c.values("loss"))) > 1:
            notes.append(c.name)
    by_step = {name: points for name, points in by_step.items() if points}
    if not by_step:
        return ""
    values = [v for points in by_step.values() for _, v in points]
    y = even_scale(min(values), max(values), lambda v: f"{v:.3g}")
    note = "one round"
    if any(len(c.rows) > 1 for c in shown):
        note = "the first round; " + (f"other rounds of {listed(notes)} end with other losses" if notes else
                                      "the others end with the same losses")
    note += f"; each point is the mean of {each} steps" if each > 1 else ""
    if len(by_step) > 1 and len({tuple(x for x, _ in points) for points in by_step.values()}) == 1:
        losses = zip(*([loss for _, loss in points] for points in by_step.values()))
        apart = max(max(row) - min(row) for row in losses)
        note += f"; the curves are at most {apart:.2g} apart" if apart else "; all curves are the same"
    parts = []
    for title, curves, text in (("Loss over steps", by_step, lambda v: f"{v:.0f}"),
                                ("Loss over seconds of training", by_second, lambda v: f"{v:.3g} s")):
        ends = [points[-1][0] for name, points in curves.items() if points]
        x = even_scale(0.0, max(ends), text)
        parts.append(plot(title, {n: p for n, p in curves.items() if n in by_step}, names, x, y, note=note))
    return "".join(parts)


def phase_bars(found):
    rows = []
    for c in found:
        values = {phase: c.median(f"time_{phase}", 0.0) for phase in PHASES}
        step = c.median("rank_time_max")
        values["rest"] = max(0.0, step - sum(values.values()))
        rows.append((c.name, values, None, time_name(step)))
    return bars("Time of a step by phase", rows, (*PHASES, "rest"), time_name,
                note="medians; of each phase, the rank that takes longest. Waits within a pass count as part of it")


def byte_bars(found):
    axes = sorted({name.split("_")[0] for c in found for name in c.columns("payload_")} - {"world"})
    axes += ["world"] if any(name.startswith("world_") for c in found for name in c.columns("planned_payload_")) else []
    rows = []
    for c in found:
        values = {axis: sum(c.median(f"payload_{name}", 0) for name in c.columns("payload_")
                            if name.split("_")[0] == axis) for axis in axes}
        planned = sum(c.median(f"planned_payload_{name}", 0) for name in c.columns("planned_payload_"))
        differing = differences(c)
        rows.append((c.name, values, planned or None, megabytes(sum(values.values())) +
                     (" ≠ planned" if differing else "")))
    if not any(sum(values.values()) for _, values, _, _ in rows):
        return ""
    return bars("Bytes of a step by axis", rows, axes, megabytes, "planned",
                "payload of rank 0's collectives and messages")


def memory_bars(found):
    own = sorted({name for c in found for name in c.columns("memory_") if c.median(f"memory_{name}")
                  and not name.startswith("peak_") and name != "total"})
    rows = [(c.name, {name.replace("_", " "): c.median(f"memory_{name}", 0) for name in own},
             c.median("planned_memory_total"), f"peak {megabytes(c.median('memory_peak_max', 0))}") for c in found]
    note = "peak: the largest of the ranks, with what libraries and the runtime take"
    other = [c for c in found if c.median("memory_total") != c.median("planned_memory_total")]
    more = [f"{len(other) - 3} more"] if len(other) > 3 else []
    note += f"; not as planned: {listed([c.name for c in other[:3]] + more)}" if other else ""
    return bars("Memory of rank 0", rows, [name.replace("_", " ") for name in own], megabytes, "planned", note)


def spread_text(spread, text=lambda v: f"{v:,.0f}"):
    if spread is None:
        return "–"
    middle, least, largest = map(text, spread)
    return middle if least == largest else f"{middle} ({least} to {largest})"


def results_table(found):
    rows = []
    evaluated = any(c.values("eval_loss") for c in found)
    for c in found:
        quarters = [c.median("tokens_per_second_q1"), c.median("tokens_per_second_q3")]
        mfu, loss = c.median("mfu"), c.median("loss")
        rows.append([c.layout, str(c.ranks), spread_text(c.spread("tokens_per_second")),
                     " to ".join(f"{v:,.0f}" for v in quarters if v is not None),
                     spread_text(c.spread("efficiency"), percent), time_name(c.median("rank_time_max")),
                     "–" if mfu is None else percent(mfu), megabytes(c.median("memory_peak_max", 0)),
                     "–" if loss is None else f"{loss:.4f}",
                     *([f"{c.median('eval_loss'):.4f}" if c.values("eval_loss") else "–"] if evaluated else []),
                     f"{len(c.rows)}" if len(c.rows) == len(c.all) else (f"{len(c.rows)} of {len(c.all)}", "bad")])
    head = ["layout", "ranks", "tokens/s", "quartiles of steps", "efficiency", "step", "MFU", "peak memory", "loss",
            *(["evaluation"] if evaluated else []), "rounds"]
    return table("Results", head, rows, "medians over the rounds of the medians over the timed steps; in brackets the "
                 "least and the largest of the rounds")


def waits_table(found):
    axes = sorted({name for c in found for name in c.columns("wait_")})
    idle = any(c.median("idle_time_max") for c in found)
    if not axes:
        return ""
    rows = [[c.name] + [time_name(v) if (v := c.median(f"wait_{axis}")) is not None else "–" for axis in axes] +
            ([time_name(c.median("idle_time_max", 0.0))] if idle else []) for c in found if c.columns("wait_")]
    return table("Waits of a step by axis", ["", *axes, *(["stages idle"] if idle else [])], rows,
                 "medians, of each axis the rank that waits longest; waits within passes are part of the passes", "")


def bytes_table(found):
    """Measured beside planned; a difference is loud."""
    rows = []
    for c in found:
        label = c.name
        for name in sorted({*c.columns("payload_"), *c.columns("planned_payload_")}):
            measured, planned = c.median(f"payload_{name}", 0), c.median(f"planned_payload_{name}", 0)
            if name.startswith("world_") and not planned:
                continue
            verdict = ("NOT THE SAME", "bad") if name in differences(c) else "the same"
            axis, operation = name.split("_", 1)
            rows.append([label, f"{axis} {operation}", f"{measured:,.0f}", f"{planned:,.0f}", verdict])
            label = ""
    if not rows:
        return ""
    return table("Bytes of a step, measured and planned", ["", "", "measured", "planned", ""], rows, "by axis and "
                 "operation, of rank 0; without the few bytes by which metrics themselves gather each step's figures",
                 "all two")


def missing_table(settings, rows):
    """What was refused or has failed, with its reason; rounds with the same reason are one line."""
    groups = {}
    for row in rows:
        if row["state"] != "done":
            key = (row["layout"], row["ranks"], row["state"], row["code"], row.get("reason") or "")
            groups.setdefault(key, []).append(row["round"])
    if not groups:
        return ""
    lines = [[layout, str(ranks), state, str(code), listed(rounds), reason]
             for (layout, ranks, state, code, reason), rounds in groups.items()]
    failed = any(key[2] == "failed" for key in groups)
    return table("Failed or refused" if failed else "Refused", ["layout", "ranks", "", "code", "rounds", "why"], lines,
                 kind="all left bad" if failed else "all left")


def warnings(rows, found):
    """Sentences about what makes the numbers less comparable."""
    done = [row for row in rows if row["state"] == "done"]
    said = []
    for column, what in (("host", "hosts"), ("processor", "processors"), ("git", "versions of mylos")):
        values = {str(row.get(column)) for row in done}
        if len(values) > 1:
            said.append(f"The runs are of several {what}: {listed(sorted(values))}.")
    crowded = sorted({c.ranks for c in found if (c.median("threads") or 1) * (c.median("ranks_per_node") or 1) >
                      (c.median("cores") or math.inf)})
    if crowded:
        said.append(f"On {listed(crowded)} ranks, more threads run than the machine has cores: these figures show what "
                    "a layout costs, not how it scales.")
    differing = [c.name for c in found if differences(c)]
    if differing:
        said.append(f"Bytes are not as planned: {listed(differing)}.")
    return said


def best_tiles(settings, found, base):
    """The fastest layout on each number of ranks."""
    out = []
    names = list(settings["layouts"])
    for ranks in sorted({c.ranks for c in found}):
        best = max((c for c in found if c.ranks == ranks), key=lambda c: c.median("tokens_per_second"))
        efficiency = best.median("efficiency")
        if (best.layout, ranks) == base:
            words = "baseline"
        elif efficiency is None:
            words = ""
        else:
            words = (f"{efficiency:.2f} times {html.escape(base[0])}, the baseline" if ranks == base[1] else
                     f"{percent(efficiency)} efficiency")
        out.append(f'<div style="color:var(--c{names.index(best.layout) % COLORS})"><span>fastest on {ranks} '
                   f"rank{'s' * (ranks > 1)}</span><b>{html.escape(best.layout)}</b> "
                   f"<em>{best.median('tokens_per_second'):,.0f} tokens/s</em><small>{words}</small></div>")
    return f'<div class="best">{"".join(out)}</div>'


def machine_card(settings, rows):
    done = [row for row in rows if row["state"] == "done"]

    def all_of(column):
        values = {row[column] for row in done if row.get(column) is not None}
        return listed(sorted(f"{v:g}" if isinstance(v, float) else str(v) for v in values)) or "–"

    facts = [("host", all_of("host")), ("processor", f"{all_of('processor')}, {all_of('cores')} cores"),
             ("threads per rank", all_of("threads")), ("peak of MFU", f"{all_of('peak_tflops')} TFLOP/s per rank"
                                                       if len({row.get("peak_tflops") for row in done}) == 1 else
                                                       "measured at each launch: see peak_tflops in study.csv"),
             ("mylos", f"{all_of('mylos')}, git {all_of('git')}"), ("command", settings["command"]),
             ("in", settings["folder"])]
    facts = "".join(f"<dt>{name}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
    commands = "\n".join(dict.fromkeys(row["command"] for row in rows if row.get("command") and row["round"] == 1))
    more = "".join(f"<details><summary>{title}</summary><pre>{html.escape(text)}</pre></details>"
                   for title, text in (("commands of the first round", commands),
                                       ("layouts", settings.get("layouts_text", "")), ("deck", settings["deck_text"]))
                   if text)
    return f'<section class="all"><h2>Machine, command, deck</h2><dl>{facts}</dl>{more}</section>'


def text(settings, rows, read):
    """The page. read(run, table) returns the columns of a table of metrics.h5."""
    everything = configurations(settings, rows)
    found = [c for c in everything if c.rows]
    base = baseline(rows)
    ranks = sorted({c.ranks for c in everything})
    layouts = len({c.layout for c in everything})  # not those of the file that are for other numbers of ranks
    what = f"{layouts} layout{'s' * (layouts > 1)} on {listed(ranks)} rank{'s' * (ranks[-1:] > [1])}"
    scaling = f"{settings['mode']} scaling" if len(ranks) > 1 else "a comparison"
    model = ""
    if found:
        row = found[0].rows[0]
        model = (f"; {short(row['parameters'])} parameters, {row['tokens_per_step']:,.0f} tokens per step"
                 f"{' on the fewest ranks' if settings['mode'] == 'weak' else ''}, {row['timed_steps']} timed steps of "
                 f"{row['steps']}")
    rounds = max((row["round"] for row in rows), default=0)
    head = (f"<header><h1>{html.escape(Path(settings['deck']).stem)}: {scaling}</h1>"
            f"<p>{what}, {rounds} round{'s' * (rounds > 1)}{model}</p></header>")
    said = warnings(rows, found)
    failed = [c.name for c in everything if any(row["state"] == "failed" for row in c.all)]
    said += [f"Failed: {listed(failed)}; the reasons are below."] if failed else []
    alert = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in said)
    loud = "bad" if failed or any(differences(c) for c in found) else ""
    alert = f'<section class="all {loud}"><h2>Read with care</h2>{alert}</section>' if said else ""
    if found:
        body = (best_tiles(settings, found, base) + "<main>" + alert + scaling_plots(settings, found, base) +
                loss_plots(settings, found, base, read) + phase_bars(found) + byte_bars(found) + memory_bars(found) +
                waits_table(found) + results_table(found) + bytes_table(found))
    else:
        body = "<main>"
    body += missing_table(settings, rows) + machine_card(settings, rows) + "</main>"
    return page(f"mylos: study of {Path(settings['deck']).name}", head + body, STYLE)

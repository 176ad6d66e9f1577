"""The table and the picture of docs/results.md, from what `peers.py` measured."""

import functools
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.experiments import plots

PLAIN = "plain TensorFlow"
_TITLES = {"lstm": "LSTM of the papers, 10 clients × 32 sentences", "conv": "light model, 100 clients × 16 sentences"}
_CLIENTS = {"lstm": 10, "conv": 100}
_KINDS = {"table": "padded", "full": "no padding"}
_MARKS = ("<!-- measured -->", "<!-- until here -->")

Pairs = Sequence[Sequence[float]]


def table(found: Mapping[str, Any]) -> str:
    """Returns the table of the same round in each framework."""
    peers = list(next(iter(found["table"].values()))["times"])
    compared = [f"| round | {peers[0]}, seconds | {' | '.join(peers[1:])} |", _rule(len(peers))]
    compared += [
        _compared(f"{_TITLES[model]}, {_KINDS[name]}", found[name][model]["times"])
        for name in _KINDS
        for model in found.get(name, ())
    ]
    return "\n".join(compared)


def _rule(columns: int) -> str:
    return f"|---|{columns * '--:|'}"


def _compared(title: str, times: Mapping[str, Pairs]) -> str:
    plain = times[PLAIN]
    ratios = [
        f"{_ratio(pairs, plain, 0)} ({_ratio(pairs, plain, 1)})" for peer, pairs in times.items() if peer != PLAIN
    ]
    return f"| {title} | {_seconds(plain, 0)} ({_seconds(plain, 1)}) | {' | '.join(ratios)} |"


def _seconds(pairs: Pairs, column: int) -> str:
    return f"{statistics.median(pair[column] for pair in pairs):.2f}"


def _ratio(pairs: Pairs, others: Pairs, column: int) -> str:
    """Returns the median of the ratios within each turn, in which the load of the machine affects both."""
    return f"{statistics.median(one[column] / other[column] for one, other in zip(pairs, others, strict=True)):.2f}"


def filled(text: str, found: Mapping[str, Any]) -> str:
    """Returns a page with the table of what was measured between its two marks."""
    before, _, rest = text.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return "".join([before, _MARKS[0], "\n\n", table(found), "\n\n", _MARKS[1], after])


def draw(found: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws what has been measured: times over clients and sizes, and memory over rounds."""
    looks = plots.styles(next(iter(found["table"].values()))["times"])
    panels = [functools.partial(_over_clients, model, part, looks) for model, part in found["table"].items()]
    if "size" in found:
        panels.append(functools.partial(_over_sizes, found["size"], looks))
    if "memory" in found:
        panels.append(functools.partial(_over_rounds, found["memory"]["conv"]))
    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    size = (plots.PAGE if columns == 2 else plots.PAGE / 2, 2.7 * rows + 0.3)
    with plots.picture(path, size=size, rows=rows, columns=columns) as (drawn, places):
        for panel, place in itertools.zip_longest(panels, places.flat):
            if panel is None:
                place.set_axis_off()
            else:
                panel(place)
        drawn.legend(*places.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _over_clients(model: str, part: Mapping[str, Any], looks: Mapping[str, Any], panel: Any) -> None:
    own = {_CLIENTS[model]: part["times"]} | {int(number): times for number, times in part["clients"].items()}
    for peer in next(iter(part["clients"].values())):
        values = [1000 * _cpu(own[number][peer]) / number for number in sorted(own)]
        panel.plot(sorted(own), values, label=peer, **looks[peer])
    panel.set(xscale="log", yscale="log", xlabel="clients a round", ylabel="CPU milliseconds a client")
    panel.set_title(_TITLES[model].split(",")[0])
    _finish(panel)


def _over_sizes(sizes: Mapping[str, Any], looks: Mapping[str, Any], panel: Any) -> None:
    numbers = sorted(map(int, sizes))
    millions = [number / 1e6 for number in numbers]
    for peer in sizes[str(numbers[0])]["times"]:
        values = [_cpu(sizes[str(number)]["times"][peer]) for number in numbers]
        panel.plot(millions, values, label=peer, **looks[peer])
    panel.set(xscale="log", yscale="log", xlabel="millions of parameters", ylabel="CPU seconds a round")
    panel.set_title("light model, 10 clients")
    _finish(panel)


def _cpu(pairs: Pairs) -> float:
    return statistics.median(pair[1] for pair in pairs)


def _finish(panel: Any) -> None:
    plots.plain_ticks(panel.xaxis)
    plots.plain_ticks(panel.yaxis)


def _over_rounds(memory: Mapping[str, Sequence[float]], panel: Any) -> None:
    for name, look in plots.styles(["worker", "python"]).items():
        panel.plot(memory["round"], [each / 1e6 for each in memory[name]], label=name, color=look["color"])
    panel.set(xlabel="round of 100 clients", ylabel="memory, MB", ylim=(0, None))
    panel.set_title("memory of Python and of TFF's worker")
    panel.legend()

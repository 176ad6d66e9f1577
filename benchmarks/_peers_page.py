"""The tables and the picture of docs/performance.md, from what `peers.py` measured."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.experiments.output import figures

PLAIN = "plain TensorFlow"
_TITLES = {"lstm": "LSTM of the papers, 10 clients × 32 sentences", "conv": "light model, 100 clients × 16 sentences"}
_KINDS = {"table": "sentences of `pydoc`", "full": "sentences of 20 words, without padding"}
_COLUMNS = "| | wall seconds | CPU seconds | wall / plain | CPU / plain | models apart |\n|---|--:|--:|--:|--:|--:|"

Pairs = Sequence[Sequence[float]]


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tables by their parts and models, each with a line above that says what it is of."""
    return {
        f"{name}, {model}": _table(name, model, found[name][model]) for name in _KINDS for model in found.get(name, ())
    } | {f"workers, {model}": _workers(model, part) for model, part in found.get("workers", {}).items()}


def _table(name: str, model: str, part: Mapping[str, Any]) -> str:
    times = part["times"]
    rows = [
        f"| {peer} | {_seconds(pairs, 0)} | {_seconds(pairs, 1)} | {_ratio(pairs, times[PLAIN], 0)} | "
        f"{_ratio(pairs, times[PLAIN], 1)} | {_apart(part['apart'][peer])} |"
        for peer, pairs in times.items()
    ]
    return "\n".join([_heading(f"{_TITLES[model]}, {_KINDS[name]}", part, len(times[PLAIN])), "", _COLUMNS, *rows, ""])


def _workers(model: str, part: Mapping[str, Any]) -> str:
    times = part["times"]
    first = next(iter(times))
    rows = [f"| {name} | {_seconds(pairs, 0)} | {_ratio(times[first], pairs, 0)} |" for name, pairs in times.items()]
    heading = _heading(_TITLES[model], part, len(times[first]))
    return "\n".join([heading, "", "| | wall seconds | times as fast |\n|---|--:|--:|", *rows, ""])


def _heading(title: str, part: Mapping[str, Any], turns: int) -> str:
    cores = f"{part['cores']} core" + ("s" if part["cores"] > 1 else "")
    before, after = part["load"]
    return f"**{title}**, {cores}, {turns} rounds of each; load of the machine {before:.0f} before, {after:.0f} after."


def _seconds(pairs: Pairs, column: int) -> str:
    values = [pair[column] for pair in pairs]
    return f"{statistics.median(values):.2f} (least {min(values):.2f})"


def _ratio(pairs: Pairs, others: Pairs, column: int) -> str:
    """Returns the median of the ratios within each turn, in which the load of the machine affects both."""
    return f"{statistics.median(one[column] / other[column] for one, other in zip(pairs, others, strict=True)):.2f}"


def _apart(distance: float) -> str:
    return f"{distance:.0e}" if distance else "0"


def draw(found: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws times over clients, over sizes and over workers, and memory over rounds, of what has been measured."""
    names = next(iter(found["table"].values()))["times"]
    looks = figures.styles(names)
    with figures.picture(path, size=(figures.PAGE, 5.0), rows=2, columns=2) as (_, panels):
        _over_clients(panels[0][0], found["table"], looks)
        _over_sizes(panels[0][1], found.get("size", {}), looks)
        _over_workers(panels[1][0], found.get("workers", {}))
        _over_rounds(panels[1][1], found.get("memory", {}).get("conv"))


def _over_clients(panel: Any, table: Mapping[str, Any], looks: Mapping[str, figures.Style]) -> None:
    for model, part in table.items():
        own = {str(_clients(model)): part["times"]} | part["clients"]
        for peer in next(iter(part["clients"].values())):
            numbers = sorted(map(int, own))
            values = [1000 * min(pair[1] for pair in own[str(number)][peer]) / number for number in numbers]
            label = peer if model == "conv" or "conv" not in table else None
            panel.plot(numbers, values, label=label, **looks[peer].line())
    panel.set(xscale="log", yscale="log", xlabel="clients a round", ylabel="CPU ms a client")
    panel.set_title("LSTM (above) and light model")
    panel.legend()


def _clients(model: str) -> int:
    return {"lstm": 10, "conv": 100}[model]


def _over_sizes(panel: Any, sizes: Mapping[str, Any], looks: Mapping[str, figures.Style]) -> None:
    for peer in next(iter(sizes.values()), {"times": ()})["times"]:
        numbers = sorted(map(int, sizes))
        values = [min(pair[1] for pair in sizes[str(number)]["times"][peer]) for number in numbers]
        panel.plot(numbers, values, label=peer, **looks[peer].line())
    panel.set(xscale="log", yscale="log", xlabel="parameters of a light model", ylabel="CPU seconds a round")
    panel.set_title("10 clients of 16 sentences")


def _over_workers(panel: Any, workers: Mapping[str, Any]) -> None:
    for index, (model, part) in enumerate(workers.items()):
        values = [statistics.median(pair[0] for pair in pairs) for pairs in part["times"].values()]
        places = [place + 0.35 * index for place in range(len(values))]
        panel.bar(places, [value / values[0] for value in values], 0.33, label=_TITLES[model].split(",")[0])
        panel.set_xticks([place + 0.17 for place in range(len(values))], [*part["times"]])
    panel.set(ylabel="wall time, over one worker's")
    panel.set_title("workers on 2 cores")
    if workers:
        panel.legend()


def _over_rounds(panel: Any, memory: Mapping[str, Sequence[float]] | None) -> None:
    for name, look in figures.styles(["worker", "python"]).items():
        if memory is not None:
            panel.plot(memory["round"], [each / 1e6 for each in memory[name]], label=name, color=look.color)
    panel.set(xlabel="round of 100 clients", ylabel="memory, MB", ylim=(0, None))
    panel.set_title("memory of Python and of TFF's worker")
    if memory is not None:
        panel.legend()

"""What the facts of a report come from: the files of a run, and the judgement on them."""

import dataclasses
import datetime
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tff_mf import grids
from tff_mf.base import strict_json
from tff_mf.base.strict_json import finite

from ..output import typed
from ..output.typed import Number, record
from ..runs import names, statements
from ..runs.ledger import LedgerRecord
from ..runs.rules import Schema
from ..runs.run_record import RunRecord
from ..runs.settings import FILES
from . import _judgement
from ._evidence import Case, Evidence
from ._figures import Figures
from ._judgement import Judgement

UTILITY = record("Utility", accuracy=Number | None, loss=Number | None, test_sentences=int | None)
# The engine of `tff_mf.experiments.flower`, as its runs name it.
_FLOWER = "flwr"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What facts come from.

    Attributes:
        folder: The run's folder.
        case: The content of its files.
        found: The judgement on them.
    """

    folder: pathlib.Path
    case: Case
    found: Judgement

    @property
    def record(self) -> RunRecord:
        """The content of `run.json`."""
        return self.case.record

    @property
    def evidence(self) -> Evidence:
        """The content of the other files."""
        return self.case.evidence

    @property
    def ledger(self) -> LedgerRecord | None:
        """The ledger, if there is one."""
        return self.case.evidence.ledger

    @property
    def refused(self) -> bool:
        """Whether no ε is stated."""
        return statements.state(self.found.claim) == statements.REFUSED

    @property
    def sizes(self) -> list[int]:
        """The number of clients of each round, by the ledger."""
        return list(_judgement.sizes(self.evidence).values())

    @property
    def noise_multiplier_as_run(self) -> float:
        """The noise multiplier of the clients that train."""
        return self.record.noise_multiplier * self.record.clients_per_round / self.record.cohort

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise in a sum, before it is correlated."""
        return self.noise_multiplier_as_run * self.record.clip_norm

    def about(self, kind: type, name: str) -> Any:
        """Returns a fact of another pipeline if it is of a type, else `None`: nothing checks them."""
        value = self.record.about.get(name)
        return value if isinstance(value, kind) and not isinstance(value, bool) else None


def repeated(times: Mapping[int, int]) -> int:
    """Returns how many rounds were counted more than once."""
    return sum(each > 1 for each in times.values())


def data_set(source: Source) -> str | None:
    """Returns the name of a data set, without the folder of its file: a report is published."""
    settings = source.record.settings
    name = source.about(str, "dataset") if settings is None else settings.dataset
    return None if name is None else without_folder(name)


def without_folder(name: str) -> str:
    """Returns the name of a file without its folder; a word stays as it is.

    Example:
        >>> without_folder("sqlite:/home/ann/data.sqlite")
        'sqlite:data.sqlite'
    """
    return re.sub("[^:/]*/", "", name)


def training_clients(source: Source) -> int | None:
    """Returns the number of clients that cohorts are drawn from, if it is known."""
    resolved = source.record.resolved
    return source.about(int, "training_clients") if resolved is None else resolved.training_clients


def settings(record: RunRecord) -> dict[str, Any]:
    """Returns all settings that a report repeats, as JSON, without the folders of files: it is published."""
    if record.settings is None or record.resolved is None:
        return record.about
    given = msgspec.to_builtins(record.settings)
    placed = {name: without_folder(given[name]) for name in FILES if given[name] is not None}
    found = {name: value for name, value in {**given, **placed}.items() if value is not None}
    return {**found, "server_learning_rate": record.resolved.server_learning_rate, **record.about}


def seconds(ledger: LedgerRecord | None) -> int | None:
    """Returns how long a run took; `None` if it is unknown, or the clock was set back meanwhile."""
    if ledger is None or ledger.started is None or ledger.finished is None:
        return None
    took = datetime.datetime.fromisoformat(ledger.finished) - datetime.datetime.fromisoformat(ledger.started)
    return int(took.total_seconds()) if took >= datetime.timedelta() else None


def made_for(source: Source) -> dict[str, Any] | None:
    """Returns the setting that the mechanism was optimized for, if it was."""
    found = None if source.evidence.mechanism is None else source.evidence.mechanism.optimized_for
    return None if found is None else {"rounds": found.rounds, **vars(Schema.of(found.participation))}


def sampling_in_secret(source: Source) -> str | None:
    """Returns a run's sampling if it amplifies where cohorts are secret, and no amplified ε is stated."""
    drawn = source.record.drawn
    if source.record.is_secret or drawn is None or not drawn.is_secret:
        return None
    return drawn.sampling


def generator(source: Source) -> str:
    """Returns the generator of the noise: TensorFlow's in its graphs, or one of the streams in NumPy."""
    about, on_grid = source.record.about, source.record.grid is not None
    if about.get("engine") != _FLOWER and "generator" not in about:
        return "tensorflow graph"
    # Without the fact, the defaults of the streams.
    return str(about.get("generator", "tensorflow" if on_grid else "philox"))


def utility(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the quality of the model as the summary states it, if it does."""
    try:
        summary = strict_json.loads((folder / names.SUMMARY).read_text(encoding="utf-8"))
        found = {name: summary[name] for name in ("accuracy", "loss")} | {
            "test_sentences": summary.get("test_sentences")
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if typed.problem(found, UTILITY) else found


def grid_of(record: RunRecord, figures: Figures | None) -> dict[str, Any] | None:
    """Returns the grid of a run and what it costs, as JSON; `None` in floating point."""
    grid, charge = record.grid, None if figures is None else figures.charge
    if grid is None:
        return None
    costs = {"limit": "limit", "error": "error", "log_ratio": "log_ratio", "mu": "mu", "tail": "tail"}
    costs["added_sensitivity"] = "sensitivity"
    return {
        **{name: getattr(grid, name) for name in ("bits", "max_clients", "integers", "bits_per_coordinate")},
        "dimension": record.dimension,
        "sampler": grids.sampler(),
        **{name: None if charge is None else finite(getattr(charge, of)) for name, of in costs.items()},
    }

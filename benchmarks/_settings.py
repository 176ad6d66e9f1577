"""Settings of which a benchmark needs the model and the data of a client alone."""

import _peer

from tff_mf.experiments.runs.settings import RunSettings


def of_model(**changes: object) -> RunSettings:
    """Returns settings of a model, by default the papers' LSTM; the run that they ask for is no benchmark."""
    return RunSettings(rounds=1, clients_per_round=1, delta=1e-6, sampling="single", **changes)


def of_case(case: _peer.Case, **changes: object) -> RunSettings:
    """Returns settings with the model of a case."""
    sizes = {name: getattr(case, name) for name in ("vocab_size", "embedding_size", "units")}
    return of_model(model=case.architecture, **sizes, **changes)

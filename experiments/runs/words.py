"""Facts of a guarantee that are stored as a code with values, and the one place where each of them has words.

Files and checks have the code and the values alone, so that a wording can change without changing either.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..output import typed
from ..output.text import spaced, words

CHOICE_OF_SETTINGS = (
    "ε is of one run: choosing learning rates, or any other setting, by repeated training on private clients is not "
    "covered by it"
)


class Said(typed.Record, kw_only=True):
    """A fact that is put into words when somebody looks.

    Attributes:
        code: Name of the fact, a key of `TEXTS`.
        values: What the text shows, as JSON.
    """

    code: str
    values: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The fact in words."""
        return text(self.code, self.values)


class Reason(Said, kw_only=True):
    """Why no ε is stated.

    Attributes:
        field: The field that it is about.
    """

    field: str


class Bound(typed.Record, kw_only=True):
    """The participation that a guarantee is bound to; what is not stated is `None`.

    Attributes:
        schema: The participation schema.
        min_sep: Its b.
        max_participations: Its k.
        restart_every: Rounds after which noise starts anew.
        adaptive_counts: Whether the counts of adaptive clipping are included.
        observed_min_sep: Smallest distance of two rounds of a client in the log.
        observed_max_participations: The most rounds of a client in the log; `None` if there is no log.
        sampling: How cohorts that stay secret are drawn.
        parameters: The parameters of the sampling, by their names.
        grid_bits: Bits of the grid that the amplified figures include; 0 for real numbers.
    """

    schema: str | None = None
    min_sep: int | None = None
    max_participations: int | None = None
    restart_every: int | None = None
    adaptive_counts: bool = False
    observed_min_sep: int | None = None
    observed_max_participations: int | None = None
    sampling: str | None = None
    parameters: dict[str, int | float] = msgspec.field(default_factory=dict)
    grid_bits: int | None = None

    def __str__(self) -> str:
        parts = [self._drawn()] if self.sampling is not None else []
        if self.schema is not None:
            k = self.max_participations
            fixed = f"in the same place of epochs of b={self.min_sep}, k≤{k} in a row"
            parts.append(fixed if self.schema == "FixedEpoch" else f"min-sep b≥{self.min_sep}, k≤{k}")
        if self.restart_every is not None:
            parts.append(f"noise restarted every {self.restart_every} rounds")
        if self.adaptive_counts:
            parts.append("counts of adaptive clipping included")
        if (most := self.observed_max_participations) is not None:
            apart = "nobody twice" if self.observed_min_sep is None else f"min-sep {self.observed_min_sep}"
            parts.append(f"observed {apart}, at most {most} participation{'' if most == 1 else 's'}")
        return ", ".join(parts)

    def _drawn(self) -> str:
        listed = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        parts = [f"cohorts by {self.sampling} sampling{f' ({listed})' if listed else ''} that nobody knows"]
        if self.grid_bits == 0:
            parts.append("real numbers and not the integers of a grid")
        elif self.grid_bits is not None:
            parts.append(f"integers of {self.grid_bits} bits")
        return ", ".join(parts)


def text(code: str, values: Mapping[str, Any]) -> str:
    """Returns a fact in words; values that do not fit, as in a file that somebody edited, are shown as they are.

    Example:
        >>> text("no_noise", {})
        'there is no noise, or none that counts'
        >>> text("grid_tail", {"more": 1})
        'grid tail: more 1'
    """
    form = TEXTS.get(code, "")
    try:
        found = form.format_map(_Shown(values))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, ZeroDivisionError):
        found = ""
    return found or f"{spaced(code)}: {words(dict(values))}"


class _Shown(dict[str, Any]):
    """The values of a fact, and what its text says in words that follow from them."""

    def __missing__(self, name: str) -> str:
        return _IN_WORDS[name](**self)


def _claimed(schema: str, min_sep: int, max_participations: int, **_: Any) -> str:
    found = f"rounds of a client are at least {min_sep} apart, and at most {max_participations}"
    if schema == "FixedEpoch":
        return f"{found}, in the same place of {max_participations} epochs that follow each other"
    return found


def _seen(observed_min_sep: int | None, observed_max_participations: int, **_: Any) -> str:
    apart = "nobody came twice" if observed_min_sep is None else f"{observed_min_sep} apart"
    return f"in the log: {apart}, at most {observed_max_participations}"


def _runs(runs: int | None) -> str:
    told = {None: "how many such runs there were is not answered", 0: "by the answers there were none"}
    return told.get(runs, f"by the answers there were {runs} such runs, which are not counted")


def _bad(reasons: Mapping[str, int], **_: Any) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)


def _listed(name: str, otherwise: str = "") -> Callable[..., str]:
    return lambda **values: ", ".join(map(str, values[name])) or otherwise


# What stands in braces in a text and is not a value itself.
_IN_WORDS: Mapping[str, Callable[..., str]] = {
    "claimed": _claimed,
    "seen": _seen,
    "assumed": lambda participation: str(typed.convert(participation, Bound)),
    "earlier runs": _runs,
    "again in words": lambda again: f"; {again} were computed again before any result was released" if again else "",
    "noise": lambda every, **_: (
        "noise runs without restart" if every is None else f"noise starts anew every {every} rounds"
    ),
    "where in words": lambda where, **_: words(where),
    "place": lambda round, attempt, **_: f"round {round}" if attempt == 1 else f"attempt {attempt} of round {round}",
    "customary": lambda population, **_: f"{population**-1.1:.2g}",
    "bad": _bad,
    "all names": _listed("names"),
    "all rounds": _listed("rounds"),
    "all divisors": _listed("divisors"),
    "all problems": lambda problems: "; ".join(text(**each) for each in problems),
}


TEXTS: Mapping[str, str] = {
    # Of every guarantee.
    "no_noise": "there is no noise, or none that counts",
    "no_noise_at_delta": "there is no noise, or too little for this δ",
    "grid_tail": "too little for a grid: of real numbers there would be an ε, but the noise of a grid has a tail, "
    "beyond which nothing is bounded, and no ε follows at δ = {delta}. Take more noise or a larger δ",
    "delta_too_large": "δ = {delta} is no smaller than 1 / {population}: a mechanism that publishes one client at "
    "random would satisfy it",
    "delta_not_customary": "δ = {delta} is above {customary} = N^-1.1, the customary bound for a population of "
    "N = {population}",
    "no_sensitivity": "no sensitivity can be computed",
    "came_too_often": "clients took part more than was accounted for: assumed {assumed}",
    # Of the artifact and the noise.
    "file_damaged": "{file} is missing or damaged: {why}",
    "artifact_other": "the artifact is not the one of {file}: its hash differs",
    "artifact_recomputed": "artifact with SHA-256 {sha256:.16}…, its sensitivity recomputed",
    "fixed_seed": "TEST ONLY: the noise has a fixed seed, so that anybody can remove it",
    "fresh_keys": "each round's noise has a fresh key of 128 bits from the operating system",
    "restarts_planned": "{noise}",
    "restarts_kept": "{noise}",
    "restarts_other": "{noise}, was accounted for, and round {where in words} differs",
    "arithmetic_in_floats": "Finite precision: not covered. The guarantee is about real numbers, and floats are "
    "released: an adversary who knows all other updates can read in low bits that a client took part; --grid auto "
    "closes that",
    "arithmetic_on_grid": "Finite precision: covered, cost included",
    "arithmetic_of_model": "Finite precision: covered, cost included, for a model of at most {dimension} parameters; "
    "the folder has no model whose parameters could be counted",
    "arithmetic_larger_model": "the model has {parameters} parameters, and what the grid costs was accounted for as if "
    "there were {dimension}",
    # Of what is released.
    "unnoised": "{name}, of {of}, is released without noise",
    "unnamed_column": "{file} has {column}, which {record} does not name: released without noise",
    "foreign_table": "{file!a} is not a file of a run, and nothing says on whose data it was computed: released "
    "without noise",
    "evaluated_trained": "{file} has {clients} of the clients in {log}: metrics on clients that train are released "
    "without noise",
    "other_release": "released without noise: {answer}",
    "clean": "nothing of the training clients leaves without noise; evaluation is on clients that do not train",
    "clean_answered": "nothing of the training clients leaves without noise: this was answered, and cannot be checked "
    "here; evaluation is on clients that do not train",
    "clean_on_training": "nothing that clients train on leaves without noise; evaluation is on {of}",
    "divisor_unknown": "the divisor of the sums is not stated, and the number of clients that reported is not constant",
    "divisor_other": "sums were divided by {all divisors}, not by the constant {divisor}: a divisor that follows the "
    "number of clients changes the sensitivity",
    "divisor_constant": "noised sums are divided by the constant {divisor}",
    "cohort_own": "the noise is that of the {clients} clients of a round",
    "cohort_foreign": "the noise was scaled for cohorts of {cohort}, and {clients} real clients train in a round: only "
    "a simulation, which no client depends on, may stand for a larger cohort",
    "cohort_simulated": "a simulation of cohorts of {cohort} by {clients} clients: see the ε of those",
    "choice_of_settings": f"{CHOICE_OF_SETTINGS}; {{earlier runs}}",
    "clip_norms_other": "the clip norm was {first} to {last}, and {clip_norm} was accounted for: adaptive clipping "
    "releases noised counts that are not counted",
    "clip_norm_fixed": "every update is clipped to L2 norm {clip_norm}; one that is not finite counts as zero",
    "clip_norm_within": "the clip norm changed in round {round}, without a restart: correlated noise of two clip norms "
    "does not cancel",
    "clip_norm_adapts": "the clip norm adapts, restarts come with it, and its counts are accounted for",
    # Of the initial model.
    "initial_unnamed": "the run has {file}, and {record} names no initial model: one of them was changed",
    "initial_other": "{file} is missing, or is not the initial model with SHA-256 {sha256:.16}…",
    "initial_same_data": "the initial model with SHA-256 {sha256:.16}… is of a run on the same data set: a client may "
    "be in both runs, whose guarantees compose, and the ε of one of them alone is too small",
    "initial_denied": "the initial model with SHA-256 {sha256:.16}… was given, and the answer on pretraining says that "
    "there was none",
    "initial_public": "the initial model with SHA-256 {sha256:.16}… is public, or its training on these clients is "
    "accounted for; this cannot be checked here",
    # Of participation and the log.
    "participation_planned": "{claimed}; to be checked in the log",
    "participation_impossible": "{claimed}; {why}",
    "participation_other_schema": "{claimed}; sampling={sampling!r} of its settings keeps another schema: clients may "
    "come otherwise",
    "participation_other_sampler": "{claimed}; sampling={sampling!r} of its settings is not the sampler, {sampler}",
    "participation_secret": "{claimed}; by the sampler, as cohorts are secret and no log has them",
    "participation_twice": "{claimed}; a client is listed twice in round {round}",
    "participation_too_soon": "{claimed}; {seen}: a client came back too soon",
    "participation_too_often": "{claimed}; {seen}: a client came too often",
    "participation_outside": "{claimed}; a client took part in rounds {all rounds}, which the schema does not allow",
    "participation_kept": "{claimed}; {seen}",
    "sampler_unplanned": "cohorts by {sampler}; no planned cohorts to compare the log with",
    "sampler_planned": "cohorts as planned by {sampler}; to be checked in the log",
    "sampler_other": "cohorts as planned by {sampler}; round {round} had another: the sampler was changed",
    "sampler_kept": "cohorts as planned by {sampler}",
    "sampler_contradicted": "cohorts by {sampler}, and {file} contradicts itself on whether they are secret",
    "sampler_not_secret": "cohorts by {sampler} are claimed to be secret, and {file} lists clients",
    "sampler_secret": "cohorts by {sampler} from the system's randomness; nobody learns who took part, how many did, "
    "or anything that depends on it but the noised sums, such as how long a round took",
    "secrecy_impossible": "no amplified ε follows from {file}: {why}",
    "secrecy_larger": "a larger ε than that of {file} follows from its settings",
    "log_planned": "every round will be in the log before it runs",
    "log_complete": "all {rounds} rounds are in the log, with every attempt",
    "log_wrong": "{all problems}",
    "log_reader": "{why}",
    "log_missing": "rounds are missing in {file}",
    "log_ends_early": "{file} has round {round}, the log ends at {rounds}",
    "log_evaluated": "{file} has an evaluation of round {round}, and {ledger} has releases up to round {released}",
    "log_open": "{file} does not say that the run ended: later rounds may be missing",
    "log_longer": "{rounds} rounds ran, {planned} were accounted for",
    "log_without_record": "{file} does not contain the hash of {record}",
    "log_other_record": "{record} was edited after the run began",
    "release_planned": "each round is released once",
    "release_twice": "round {round} was released more than once: two results of a round are two releases",
    "release_impossible": "{why}: no run has such a ledger",
    "release_once": "each round was released at most once, in order, by its newest attempt{again in words}",
    # Of what only the operator knows.
    "depends_on_data": "patterns of participation must not depend on the data",
    "pretraining_private": "pretraining on these clients' data has no guarantee here",
    "state_known": "anybody with the state can remove the noise",
    "independence_assumed": "it does not depend on the clients' data; this cannot be checked here",
    "secrecy_assumed": "only those who are trusted see the server's state, with its keys and noise rows; this cannot "
    "be checked here",
    "unanswered": "not answered",
    "tuned": "earlier runs on these clients that chose the settings: {runs}. No figure here counts them, and ε of "
    "all runs together is larger",
    "several_clients": "one person can be {clients} clients: the ε of a person comes first",
    # Of the figures and the summary.
    "no_figures": "no sensitivity can be computed from the files; see the other findings",
    "sensitivity_refuted": "clients that follow the schema attain a larger sensitivity than the planned one",
    "accountants_differ": "the closed form of ε and privacy loss distributions are more than {tolerance} apart",
    "stopped_early": "stopped after {rounds} of {planned} rounds, the last released round with clients: if the "
    "decision to stop depended on released results, only the planned figures hold; the larger of the planned and the "
    "final figures is stated",
    "other_sizes": "{rounds} rounds had other than {clients} clients, round {first} first",
    "a_plan": "a planned report: it is about the settings of the run, not about what it did",
    "summary_damaged": "{file} is damaged: {why}",
    "summary_other": "{file} has another {name} than follows from the other files",
    "summary_unknown": "{file} has {name}, which is not a field of a summary or does not follow from the other files",
    "summary_no_number": "{file} has {name}, which is not a number",
    "summary_no_version": "{file} has {name}, which is not a version",
    "model_other": "{file} is missing, or its hash is not the one in {summary}",
    "rounds_without_updates": "{rounds} rounds have no update in them, round {first} first: their models got noise "
    "alone",
    "bad_reports": "in {rounds} rounds more than a tenth of the reports were refused, scaled or zeroed, round {first} "
    "first; in all, of {came}: {bad}",
    # Of the stored report, and of the folder.
    "report_missing": "there is no report to check",
    "report_damaged": "{file} is missing or damaged: {why}; write it with tff-mf report",
    "report_version": "{file} has version {version}, and this release checks {checked}: write it again with tff-mf "
    "report",
    "report_differs": "{file} differs from what follows from the run's files in {all names}: put back what was "
    "changed, or write the report again with tff-mf report",
    "report_schema": "{file}: {why}",
    "page_missing": "{file} is missing",
    "page_damaged": "{file} is damaged: {why}",
    "page_other": "{file} is not the page that this release makes of {report}: tff-mf report writes it again",
    "nothing_ran": "no file of a run that began is here: a run whose files were removed looks the same",
    "unfinished_files": "a killed process left {all names}, which may have keys of the noise: delete it, or resume the "
    "run, which deletes it",
    "line_ends": "{all names}: not the line ends that tff-mf writes, as after git with core.autocrlf: copy the run as "
    "it was written (git: `* -text` in .gitattributes)",
}

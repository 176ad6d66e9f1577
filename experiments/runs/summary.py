"""`summary.json` of a run: how good its final model is, and what it took."""

from ..output.typed import Number, Record


class Quality(Record, kw_only=True):
    """How good the final model of a run is.

    Attributes:
        accuracy: On test sentences, over known words.
        baseline_accuracy: Of always the most frequent word, on the same sentences.
        loss: On the same sentences; `None` if the model diverged.
        test_sentences: Number of test sentences.
        validation_accuracy: On validation sentences, after the last round.
        validation_accuracy_smoothed: The mean of the last evaluations (`metrics.smoothed`).
        validation_sentences: Number of validation sentences.
        validation_split: The clients that they are of.
    """

    accuracy: Number
    baseline_accuracy: Number
    loss: Number | None
    test_sentences: int
    validation_accuracy: Number
    validation_accuracy_smoothed: Number
    validation_sentences: int
    validation_split: str


class Summary(Quality, kw_only=True):
    """The content of `summary.json`. It states no guarantee: reports do.

    Attributes:
        model_sha256: SHA-256 of the file of the model.
        parameters: Number of the model's parameters.
        dropped_participations: How often a client that was chosen dropped out.
        seconds: Seconds that the rounds took; 0 if the cohorts are secret.
        tff_mf_version: The version that trained.
    """

    model_sha256: str
    parameters: int
    dropped_participations: int
    seconds: Number
    tff_mf_version: str

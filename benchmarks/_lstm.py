"""The model of the papers with real clients of the `pydoc` dataset."""

import _settings
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import sampling
from tff_mf.experiments.training import task
from tff_mf.experiments.training.datasets import named_data, sentences, sqlite

PARAMETERS = 4_050_748
CLIENTS = 10


class Lstm:
    """The LSTM of 4,050,748 parameters, and a cohort of real clients.

    Args:
        clients: Number of clients in the cohort.
    """

    def __init__(self, clients: int = CLIENTS) -> None:
        data = named_data.data_file("pydoc")
        splits = sqlite.load(data)
        cohorts = sampling.plan_cohorts(
            client_ids=splits.train.client_ids,
            clients_per_round=clients,
            rounds=1,
            sampling=tff_mf.SingleParticipation(),
            seed=0,
        )
        self.task = task.build_task(
            _settings.of_model(batch_size=16, max_examples=32), list(sqlite.load_word_counts(data, 10_000))
        )
        self.cohort = self.task.build_batches(sentences.ClientSentences(data, "train")).of(cohorts.cohort(0))

    def process(
        self, aggregator: tff.aggregators.UnweightedAggregationFactory | None
    ) -> tff.learning.templates.LearningProcess:
        return tff.learning.algorithms.build_unweighted_fed_avg(
            self.task.model,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.9),
            model_aggregator=aggregator,
            loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
        )


def blt(
    *,
    insecure_seed: int | None = None,
    record_sum: tff.aggregators.UnweightedAggregationFactory | None = None,
) -> aggregators.MFAggregationFactory:
    """Returns the aggregator of a BLT with 4 buffers for cohorts of `CLIENTS` clients."""
    return aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"),
        clip_norm=1.0,
        noise_multiplier=0.1,
        clients_per_round=CLIENTS,
        insecure_seed=insecure_seed,
        record_aggregation_factory=record_sum,
    )

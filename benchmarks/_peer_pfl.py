"""Rounds of pfl-research for `peers.py`: its own loop, which waits for the next request after each round."""

import itertools
import pathlib
import sys

import _peer
import torch
from _peer_torch_models import NextWord
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import HyperParam, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

_MANY = 10**9


class Cohort(HyperParam, TrainingProcessCallback):
    """The size of the next cohort, as it is requested, and its users: the first ones, in every round.

    Args:
        requests: The requests.
    """

    def __init__(self, requests: _peer.Requests) -> None:
        self._requests = requests
        self._next_round()

    def _next_round(self) -> None:
        self._clients = self._requests.next_round()
        self._users = itertools.count()

    def value(self) -> int:
        return self._clients or 0

    def next_user(self) -> int:
        return next(self._users)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._next_round()
        return self._clients is None, Metrics()


def main() -> None:
    given = _peer.read(pathlib.Path(sys.argv[1]))
    case, module = given.case, NextWord(given.case, given.weights)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(learned, lr=1.0, momentum=case.momentum))
    cohort = Cohort(_peer.Requests(module.in_keras))
    inputs, targets = torch.from_numpy(given.inputs), torch.from_numpy(given.targets)
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset((inputs[user], targets[user]), user_id=str(user)), cohort.next_user
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(case.clip_norm, case.noise_multiplier))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_MANY, evaluation_frequency=_MANY, train_cohort_size=cohort, val_cohort_size=None
        ),
        SimulatedBackend(data, data, [noise]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=case.client_rate, local_batch_size=case.batch),
        callbacks=[cohort],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()

"""Rounds for `peers.py` of a plain loop in torch, and of pfl-research: `_peer_torch.py FOLDER torch|pfl`."""

import itertools
import pathlib
import sys
from collections.abc import Sequence

import _peer
import numpy as np
import torch
from torch.nn import functional

_MANY = 10**9


class NextWord(torch.nn.Module):
    """The LSTM of the papers, or the light model: words `[batch, length]` to logits `[batch, length, words]`.

    The mask of the Keras LSTM is left out: padding is at the end of a sentence, and counts in no loss.

    Args:
        case: Its sizes.
        weights: Its weights, in Keras' order and shapes.
    """

    def __init__(self, case: _peer.Case, weights: Sequence[np.ndarray]) -> None:
        super().__init__()
        words = case.vocab_size + 4
        self.embedding = torch.nn.Embedding(words, case.embedding_size)
        self.recurrent = case.architecture == "lstm"
        if self.recurrent:
            self.hidden = torch.nn.LSTM(case.embedding_size, case.units, batch_first=True)
            # Keras has one bias.
            torch.nn.init.zeros_(self.hidden.bias_hh_l0)
            self.hidden.bias_hh_l0.requires_grad = False
            layers = [torch.nn.Linear(case.units, case.embedding_size), torch.nn.Linear(case.embedding_size, words)]
        else:
            self.hidden = torch.nn.Conv1d(case.embedding_size, case.units, 3)
            layers = [torch.nn.Linear(case.units, words)]
        self.head = torch.nn.Sequential(*layers)
        with torch.no_grad():
            for parameter, weight in zip(self._in_order(), weights, strict=True):
                parameter.copy_(
                    torch.from_numpy(weight.T if weight.ndim > 1 and parameter is not self.embedding.weight else weight)
                )

    def _in_order(self) -> list[torch.nn.Parameter]:
        hidden = self.hidden
        if self.recurrent:
            found = [self.embedding.weight, hidden.weight_ih_l0, hidden.weight_hh_l0, hidden.bias_ih_l0]
        else:
            found = [self.embedding.weight, hidden.weight, hidden.bias]
        return [*found, *self.head.parameters()]

    def in_keras(self) -> list[np.ndarray]:
        """Returns the weights, in Keras' order and shapes."""
        first, *others = [parameter.detach().numpy().copy() for parameter in self._in_order()]
        return [first, *(other.T for other in others)]

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        inputs = self.embedding(words)
        if self.recurrent:
            return self.head(self.hidden(inputs)[0])
        before = functional.pad(inputs.transpose(1, 2), (2, 0))
        return self.head(functional.relu(self.hidden(before)).transpose(1, 2))

    def loss(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        logits = self(words)
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=_peer.PADDING)

    def metrics(self, words: torch.Tensor, following: torch.Tensor) -> dict[str, float]:
        """Returns the loss, as pfl-research asks for it."""
        with torch.no_grad():
            return {"loss": float(self.loss(words, following))}


def in_torch(given: _peer.Given) -> None:
    """Runs rounds of a plain loop."""
    case, model = given.case, NextWord(given.case, given.weights)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters]
    total, velocity = ([torch.zeros_like(parameter) for parameter in start] for _ in range(2))
    optimizer = torch.optim.SGD(parameters, lr=case.client_rate)
    inputs, targets = torch.from_numpy(given.inputs), torch.from_numpy(given.targets)

    def reset() -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, start, strict=True):
                parameter.copy_(value)

    def client(number: int) -> None:
        reset()
        for first in range(0, case.sentences, case.batch):
            part = slice(first, first + case.batch)
            optimizer.zero_grad()
            model.loss(inputs[number, part], targets[number, part]).backward()
            optimizer.step()
        with torch.no_grad():
            changes = [parameter - value for parameter, value in zip(parameters, start, strict=True)]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(change) for change in changes]))
            scale = min(1.0, case.clip_norm / float(norm))
            for added, change in zip(total, changes, strict=True):
                added.add_(change, alpha=scale)

    def one_round() -> None:
        for number in range(case.clients):
            client(number)
        for value, added, speed in zip(start, total, velocity, strict=True):
            added.add_(torch.randn_like(added), alpha=case.noise_multiplier * case.clip_norm)
            speed.mul_(case.momentum).add_(added, alpha=1 / case.clients)
            value.add_(speed)
            added.zero_()
        reset()

    _peer.serve(model.in_keras, one_round)


def in_pfl(given: _peer.Given) -> None:
    """Runs rounds of pfl-research's own loop, which waits for the next request after each of them."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    case, module = given.case, NextWord(given.case, given.weights)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(learned, lr=1.0, momentum=case.momentum))
    requests = _peer.Requests(module.in_keras)

    class Pause(TrainingProcessCallback):
        """Waits for the next request after each round."""

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            return not requests.wants_round(), Metrics()

    # All of the users, in every round.
    users = itertools.cycle(range(case.clients))
    inputs, targets = torch.from_numpy(given.inputs), torch.from_numpy(given.targets)
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset((inputs[user], targets[user]), user_id=str(user)), lambda: next(users)
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(case.clip_norm, case.noise_multiplier))
    if not requests.wants_round():
        return
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_MANY,
            evaluation_frequency=_MANY,
            train_cohort_size=case.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [noise]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=case.client_rate, local_batch_size=case.batch),
        callbacks=[Pause()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    {"torch": in_torch, "pfl": in_pfl}[sys.argv[2]](_peer.read(pathlib.Path(sys.argv[1])))

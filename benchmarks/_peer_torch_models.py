"""The models of `peers.py` in torch, with the weights of Keras."""

from collections.abc import Sequence

import _peer
import numpy as np
import torch
from torch.nn import functional


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

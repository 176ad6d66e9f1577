"""Rounds of a plain loop in torch for `peers.py`."""

import pathlib
import sys

import _peer
import torch
from _peer_torch_models import NextWord


def main() -> None:
    given = _peer.read(pathlib.Path(sys.argv[1]))
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

    def one_round(clients: int) -> None:
        for number in range(clients):
            client(number)
        for value, added, speed in zip(start, total, velocity, strict=True):
            added.add_(torch.randn_like(added), alpha=case.noise_multiplier * case.clip_norm)
            speed.mul_(case.momentum).add_(added, alpha=1 / clients)
            value.add_(speed)
            added.zero_()
        reset()

    _peer.serve(model.in_keras, one_round)


if __name__ == "__main__":
    main()

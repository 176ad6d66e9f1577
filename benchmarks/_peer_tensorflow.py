"""Rounds of a plain TensorFlow loop for `peers.py`, with the Keras model that TFF trains."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _peer
import _settings
from _plain_round import PlainRound

from tff_mf.experiments.training import models


def main() -> None:
    given = _peer.read(pathlib.Path(sys.argv[1]))
    case = given.case
    model = models.build_keras_model(_settings.of_case(case), extended_vocab_size=case.vocab_size + 4)
    model.set_weights(given.weights)
    plain = PlainRound(
        model=model,
        batch=case.batch,
        client_rate=case.client_rate,
        clip_norm=case.clip_norm,
        noise=case.noise_multiplier * case.clip_norm,
        momentum=case.momentum,
    )
    one_round, variables = plain.build(list(zip(given.inputs, given.targets, strict=True)))
    _peer.serve(lambda: [variable.numpy() for variable in variables], one_round)


if __name__ == "__main__":
    main()

"""A sample of `python tests/datasets`: the resident context reads and trains what TFF's own does, bit for bit."""

import itertools
import pathlib
import sys

import pytest

pytest.importorskip("tensorflow_federated")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import matrix
import rounds
import shapes

from tff_mf import aggregators

# Each structure is read with both loops; shapes.sample() has shapes of one type together. CI reads one in six.
READ = [(shape, matrix.LOOPS[(number // 3 + number // 12) % 2]) for number, shape in enumerate(shapes.sample())]
TUTORIAL = list(itertools.product([next(rounds.tasks())], matrix.LOOPS))


@pytest.fixture(scope="module")
def results(request):
    """What TFF's own context gives, and the resident one."""
    read = READ if request.config.getoption("--long") else READ[::6]
    found = []
    for context in (aggregators.tff_session, aggregators.resident_context):
        with context():
            found.append((matrix.readings(read), matrix.models(TUTORIAL)))
    return found


def test_clients_data_of_every_shape_is_read_as_tffs_own_context_reads_it(results):
    (expected, _), (found, _) = results
    assert [name for name, value in expected.items() if isinstance(value, str)] == []
    assert found == expected
    # A digest that did not depend on the data would be the same for all; two pipelines may well read the same.
    assert len(set(expected.values())) >= len(expected) - 4


def test_the_tutorial_on_images_trains_the_same_model_with_both_loops(results):
    (_, expected), (_, found) = results
    assert [value for value in expected.values() if isinstance(value, str)] == []
    assert found == expected
    reduced, iterated = expected.values()
    assert reduced == iterated
    assert reduced[1]["num_examples"] > 0

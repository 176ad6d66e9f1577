"""Training with Opacus' gradients of single examples and the noise of a plan, against a plain loop."""

import copy
import io
import pathlib
import re

import numpy as np
import pytest

import tff_mf

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")

from opacus.grad_sample import GradSampleModuleFastGradientClipping  # noqa: E402
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping  # noqa: E402

from tff_mf.opacus import PrivacyEngine  # noqa: E402
from tff_mf.torch import CorrelatedNoise, clipped_sum  # noqa: E402

from .test_frameworks import plan  # noqa: E402

X = torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
DATA = torch.utils.data.TensorDataset(X, Y)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 3))


def private(given, **settings):
    engine, model = PrivacyEngine(given, **settings), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(DATA, batch_size=given.clients_per_round)
    return engine, *engine.make_private(module=model, optimizer=optimizer, data_loader=loader)


def backward(model, x, y):
    torch.nn.functional.cross_entropy(model(x), y).backward()


def epoch(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()


def test_training_is_the_one_of_a_plain_loop():
    for given in (plan(insecure_seed=1, clip_norm=0.2), plan(insecure_seed=1, clip_norm=0.2).for_model(47)):
        engine, model, optimizer, loader = private(given)
        for _ in range(2):
            epoch(model, optimizer, loader)
        assert engine.rounds == 6
        assert len(loader) == 0
        same, order = network(), tff_mf.Order.of(given, examples=12)
        noise, descent = CorrelatedNoise(given, same.parameters()), torch.optim.SGD(same.parameters(), 0.1, 0.9)

        def loss(weights, x, y, same=same):
            return torch.nn.functional.cross_entropy(torch.func.functional_call(same, weights, x[None]), y[None])

        for batch in order.batches(0, 6):
            gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(
                dict(same.named_parameters()), X[batch], Y[batch]
            )
            noise.apply(clipped_sum(list(gradients.values()), 0.2, grid=given.grid))
            descent.step()
        for ours, expected in zip(model.parameters(), same.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-4 if given.grid else 1e-5)


def test_epsilon_is_the_one_of_the_plan():
    engine = PrivacyEngine(plan())
    assert engine.get_epsilon(1e-5) == plan().epsilon
    assert PrivacyEngine(plan(insecure_seed=1)).get_epsilon(1e-5) == np.inf


def test_a_batch_without_a_step_is_refused():
    batches = iter(private(plan())[-1])
    next(batches)
    with pytest.raises(tff_mf.InputError, match="step the optimizer once"):
        next(batches)


def test_a_batch_has_one_step_though_no_other_is_asked_for():
    """Its examples would be in every round."""
    engine, model, optimizer, loader = private(plan())
    x, y = next(iter(loader))
    for step in range(2):
        backward(model, x, y)
        if step:
            with pytest.raises(tff_mf.InputError, match=r"round 1, and .* of round 0"):
                optimizer.step()
        else:
            optimizer.step()
    assert engine.rounds == 1


def test_a_batch_of_an_earlier_pass_is_refused():
    engine, model, optimizer, loader = private(plan())
    one = iter(loader)
    backward(model, *next(one))
    optimizer.step()
    for _ in range(2):
        x, y = next(iter(loader))
    backward(model, x, y)
    optimizer.step()
    backward(model, x, y)
    with pytest.raises(tff_mf.InputError, match=r"round 2, and .* of round 1"):
        optimizer.step()
    with pytest.raises(tff_mf.InputError, match="step the optimizer once"):
        next(one)
    assert engine.rounds == 2


def test_no_other_optimizer_steps_on_gradients_without_noise():
    engine, model, optimizer, loader = private(plan())
    others = [torch.optim.SGD(model.parameters(), lr=1.0), copy.deepcopy(optimizer)]
    others[1].param_groups[0]["params"] = list(model.parameters())
    before = [each.detach().clone() for each in model.parameters()]
    backward(model, *next(iter(loader)))
    for other in others:
        other.step()
    assert engine.rounds == 0
    assert all(map(torch.equal, before, model.parameters()))


def test_no_step_on_other_gradients():
    engine, model, optimizer, loader = private(plan())
    x, y = next(iter(loader))
    with pytest.raises(tff_mf.InputError, match="backward"):
        optimizer.step()
    for closed in ((lambda: backward(model, x, y),), ()):
        with pytest.raises(tff_mf.InputError, match="closure"):
            optimizer.step(*closed, **{} if closed else {"closure": lambda: backward(model, x, y)})
    backward(model, x, y)
    other = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [other]})
    with pytest.raises(tff_mf.InputError, match="parameters"):
        optimizer.step()
    assert engine.rounds == 0


def test_backward_passes_of_a_round_are_one_batch():
    halves = []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        _, model, optimizer, loader = private(plan(insecure_seed=1, clip_norm=0.2))
        x, y = next(iter(loader))
        for part in parts:
            backward(model, x[part], y[part])
        optimizer.step()
        halves.append(torch.cat([each.detach().ravel() for each in model.parameters()]))
    torch.testing.assert_close(*halves)


def test_an_example_is_in_a_round_once():
    """Two losses on one batch would double the sensitivity."""
    for parts in ([slice(0, 4)] * 2, [slice(0, 3)]):
        engine, model, optimizer, loader = private(plan())
        x, y = next(iter(loader))
        for part in parts:
            backward(model, x[part], y[part])
        with pytest.raises(tff_mf.InputError, match="the batch has 4"):
            optimizer.step()
        assert engine.rounds == 0


def test_what_the_engine_of_opacus_has_made_is_refused():
    engine, model = opacus.PrivacyEngine(), network()
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(DATA, batch_size=4)
    wrapped, theirs, _ = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    for given in ((wrapped, optimizer), (network(), theirs)):
        with pytest.raises(tff_mf.InputError, match="Opacus"):
            PrivacyEngine(plan()).make_private(module=given[0], optimizer=given[1], data_loader=loader)


@pytest.mark.parametrize(
    ("ours", "refused", "named"),
    [(True, tff_mf.InputError, "BatchMemoryManager"), (False, AttributeError, "signal_skip_step")],
    ids=["loader of ours", "loader of PyTorch"],
)
def test_virtual_steps_are_refused(ours, refused, named):
    """Each part of a batch would be a release of its own, or none."""
    engine, model, optimizer, loader = private(plan())
    given = loader if ours else torch.utils.data.DataLoader(DATA, batch_size=4)
    manager = BatchMemoryManager(data_loader=given, max_physical_batch_size=2, optimizer=optimizer)
    with pytest.raises(refused, match=named), manager as parts:
        epoch(model, optimizer, parts)
    assert engine.rounds == 0


def test_ghost_clipping_is_refused():
    """It has no gradients of single examples: its sums are clipped by Opacus, to another norm."""
    model = network()
    given = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": torch.utils.data.DataLoader(DATA, batch_size=4),
    }
    with pytest.raises(TypeError, match="grad_sample_mode"):
        PrivacyEngine(plan()).make_private(module=model, **given, grad_sample_mode="ghost")
    ghost = GradSampleModuleFastGradientClipping(model)
    with pytest.raises(tff_mf.InputError, match="module=GradSampleModuleFastGradientClipping"):
        PrivacyEngine(plan()).make_private(module=ghost, **given)
    engine, model, optimizer, loader = private(plan())
    x, y = next(iter(loader))
    theirs = DPOptimizerFastGradientClipping(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
    criterion = DPLossFastGradientClipping(model, theirs, torch.nn.CrossEntropyLoss())
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(AttributeError, match="get_clipping_coef"):
        criterion(model(x), y).backward()
    with pytest.raises(AttributeError):
        theirs.step()
    assert engine.rounds == 0
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_steps_of_a_gradient_scaler_are_refused(fused, unscaled):
    """It would divide what has its noise by a scale that is about other gradients."""
    engine, model = PrivacyEngine(plan()), network()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, fused=fused),
        data_loader=torch.utils.data.DataLoader(DATA, batch_size=4),
    )
    before = [each.detach().clone() for each in model.parameters()]
    x, y = next(iter(loader))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
    if unscaled:
        scaler.unscale_(optimizer)
    with pytest.raises(tff_mf.InputError, match="GradScaler"):
        scaler.step(optimizer)
    assert engine.rounds == 0
    assert all(map(torch.equal, before, model.parameters()))


def test_opacus_cannot_count_a_step_of_ours():
    """Its engine around our optimizer would state an ε of its own noise."""
    _, model, optimizer, loader = private(plan())
    theirs = DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
    accountant = opacus.accountants.RDPAccountant()
    x, y = next(iter(loader))
    backward(model, x, y)
    with pytest.raises(tff_mf.InputError, match="DPOptimizer"):
        theirs.step()
    assert len(accountant) == 0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"module": torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))}, "BatchNorm"),
        ({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)}, "parameters"),
        ({"data_loader": torch.utils.data.DataLoader(DATA, batch_size=5)}, "batch_size=5"),
        ({"loss_reduction": "none"}, "loss_reduction"),
    ],
    ids=["batch normalization", "other parameters", "batch size", "reduction"],
)
def test_what_would_void_the_guarantee_is_refused(changed, named):
    model = changed.get("module", network())
    given = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": torch.utils.data.DataLoader(DATA, batch_size=4),
    }
    with pytest.raises(Exception, match=named):
        PrivacyEngine(plan()).make_private(**given | changed)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_state_goes_on_in_its_own_order(seed):
    """In another order, an example could come again at once."""
    engine, model, optimizer, loader = private(plan(), seed=5)
    backward(model, *next(iter(loader)))
    optimizer.step()
    state, resumed = engine.state_dict(), private(plan(), seed=seed)[0]
    if seed == 5:
        resumed.load_state_dict(state)
        assert resumed.rounds == 1
        return
    with pytest.raises(tff_mf.InputError, match="seed=0"):
        resumed.load_state_dict(state)
    assert resumed.rounds == 0


def normalized(layer, *, evaluated=False):
    for each in layer.parameters():
        each.requires_grad_(False)
    layers = torch.nn.Conv2d(1, 2, 3), layer.eval() if evaluated else layer, torch.nn.Flatten(), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(*layers)
    trained = [each for each in model.parameters() if each.requires_grad]
    return {
        "module": model,
        "optimizer": torch.optim.SGD(trained, lr=0.1),
        "data_loader": torch.utils.data.DataLoader(DATA, batch_size=4),
    }


@pytest.mark.parametrize(
    ("layer", "evaluated"),
    [
        (torch.nn.BatchNorm2d(2), False),
        (torch.nn.BatchNorm2d(2, affine=False), False),
        (torch.nn.BatchNorm2d(2, affine=False, track_running_stats=False), True),
        (torch.nn.InstanceNorm2d(2, track_running_stats=True), False),
    ],
    ids=["frozen", "without weights", "without running statistics", "instances"],
)
def test_layers_that_mix_examples_are_refused_though_they_do_not_train(layer, evaluated):
    """With them, every clipped term depends on every example. Opacus asks only layers with weights that train."""
    with pytest.raises(tff_mf.InputError, match=f"1={type(layer).__name__}"):
        PrivacyEngine(plan()).make_private(**normalized(layer, evaluated=evaluated))


def test_statistics_of_a_batch_are_refused_when_the_model_trains_again():
    engine = PrivacyEngine(plan())
    model, optimizer, loader = engine.make_private(**normalized(torch.nn.BatchNorm2d(2), evaluated=True))
    batches = iter(loader)
    backward(model, *next(batches))
    optimizer.step()
    model.train()
    backward(model, *next(batches))
    with pytest.raises(tff_mf.InputError, match="BatchNorm2d"):
        optimizer.step()
    assert engine.rounds == 1


@pytest.mark.parametrize("layer", [torch.nn.Embedding, torch.nn.EmbeddingBag])
@pytest.mark.parametrize("trains", [True, False])
def test_embeddings_that_shorten_the_vectors_of_a_batch_are_refused(layer, trains):
    """PyTorch does so in place: the released weights show, without noise, which words were in the batch."""
    words = layer(8, 4, max_norm=1.0)
    words.weight.requires_grad_(trains)
    model = torch.nn.Sequential(words, torch.nn.Flatten(), torch.nn.Linear(8 if layer is torch.nn.Embedding else 4, 3))
    trained = [each for each in model.parameters() if each.requires_grad]
    loader = torch.utils.data.DataLoader(DATA, batch_size=4)
    with pytest.raises(tff_mf.InputError, match=f"0={layer.__name__} has max_norm=1.0"):
        PrivacyEngine(plan()).make_private(module=model, optimizer=torch.optim.SGD(trained, lr=0.1), data_loader=loader)


class Running(torch.nn.Module):
    """A layer of a user's own: it keeps the mean of all examples so far."""

    def __init__(self, *, replaces):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.replaces = replaces

    def forward(self, x):
        mean = self.mean + x.detach().mean()
        if self.replaces:
            self.mean = mean
        else:
            self.mean.copy_(mean)
        return x


@pytest.mark.parametrize(
    "layer",
    [
        Running(replaces=True),
        Running(replaces=False),
        torch.ao.quantization.MovingAverageMinMaxObserver(),
        torch.ao.quantization.FakeQuantize(),
    ],
    ids=["a new tensor", "in place", "observer", "quantization"],
)
def test_no_step_follows_a_batch_that_the_model_keeps_something_of(layer):
    """It would be released with the weights, without noise."""
    engine = PrivacyEngine(plan())
    model, optimizer, loader = engine.make_private(**normalized(layer))
    backward(model, *next(iter(loader)))
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(tff_mf.InputError, match=r"module has changed 1\."):
        optimizer.step()
    assert engine.rounds == 0
    assert all(map(torch.equal, before, model.parameters()))


class Twice(torch.nn.Module):
    """Computes all examples, and some, or learned queries, once more with the same layer."""

    def __init__(self, which):
        super().__init__()
        self.which, self.layer = which, torch.nn.Linear(16, 3)
        self.queries = torch.nn.Parameter(torch.ones(1, 16))

    def forward(self, x):
        found = self.layer(x.flatten(1))
        if self.which == "queries":
            return found + self.layer(self.queries)
        chosen = torch.arange(len(x)) > (0 if self.which == "some" else -1)
        return found.index_add(0, chosen.nonzero()[:, 0], self.layer(x.flatten(1)[chosen]))


@pytest.mark.parametrize("which", ["some", "queries", "all"])
def test_layers_that_are_called_on_a_part_of_the_examples_are_refused(which):
    """Opacus adds rows of several calls by their place: gradients of one example were in the terms of others."""
    model = Twice(which)
    model.queries.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    engine, loader = PrivacyEngine(plan()), torch.utils.data.DataLoader(DATA, batch_size=4)
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(trained, lr=0.1), data_loader=loader
    )
    x, y = next(iter(loader))
    for part in (slice(0, 1), slice(1, 4)):
        backward(model, x[part], y[part])
    if which == "all":
        optimizer.step()
    else:
        with pytest.raises(tff_mf.InputError, match="layer=Linear was called on"):
            optimizer.step()
    assert engine.rounds == (which == "all")


@pytest.mark.parametrize("dim", [0, None])
@pytest.mark.parametrize("layer", [torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Softmin])
def test_a_softmax_over_the_examples_is_refused(layer, dim):
    with pytest.raises(tff_mf.InputError, match=f"1={layer.__name__} has dim={dim}"):
        PrivacyEngine(plan()).make_private(**normalized(layer(dim=dim)))


@pytest.mark.parametrize("random", [True, False])
def test_numbers_of_layers_are_unknown_where_the_place_of_an_example_is_a_secret(random):
    """Of known masks of dropout, an example that joins a batch would give all that follow it other ones."""
    sampling = tff_mf.Poisson(population=12, clients_per_round=4)
    given = plan(mechanism=tff_mf.Identity(), sampling=sampling, secret_cohorts=True) if random else plan()
    drawn = []
    for _ in range(2):
        *_, loader = private(given)
        torch.manual_seed(1)
        batches = iter(loader)
        next(batches)
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn) is not random


@pytest.mark.parametrize("sampling", [tff_mf.Poisson(population=12, clients_per_round=1), tff_mf.BallsInBins(groups=3)])
def test_random_batches_may_be_empty_and_go_on_after_a_restart(sampling):
    mechanism = tff_mf.Identity() if isinstance(sampling, tff_mf.Poisson) else tff_mf.BLT.production("b100")
    size = sampling.clients_per_round or 4
    given = plan(mechanism=mechanism, sampling=sampling, clients_per_round=size, secret_cohorts=True)
    engine, model, optimizer, loader = private(given)
    saved = engine.state_dict()
    found = []
    for x, y in loader:
        backward(model, x, y)
        optimizer.step()
        found.append(x)
    file = io.BytesIO()
    torch.save(engine.state_dict(), file)
    file.seek(0)
    again, *_, resumed = private(given)
    again.load_state_dict(torch.load(file))
    assert again.rounds == engine.rounds == len(found)
    if not isinstance(sampling, tff_mf.Poisson):
        again.load_state_dict(saved)
        for expected, (x, _) in zip(found[:1], resumed, strict=False):
            assert torch.equal(x, expected)
    with pytest.raises(tff_mf.InputError, match="secret_key"):
        again.load_state_dict({})


def test_the_page_runs(capsys):
    pytest.importorskip("sklearn")
    page = pathlib.Path(__file__).parents[2] / "docs" / "jax-and-pytorch.md"
    program = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(program, str(page), "exec"), {})
    accuracy, epsilon = re.fullmatch(r"accuracy (.*)%, ε = (.*) at δ = 1e-05\n", capsys.readouterr().out).groups()
    assert float(accuracy) > 75
    assert 7.5 < float(epsilon) <= 8

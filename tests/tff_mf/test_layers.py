"""Layers import only lower layers, a few packages import TensorFlow, private modules stay private; public names."""

import ast
import functools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
LAYERS = {"tff_mf": "tff_mf", "aggregators": "tff_mf.aggregators", "experiments": "tff_mf.experiments"}
TENSORFLOW = ("noise.tensorflow", "queries", "frameworks.keras")
FILES = [file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))]


def package_of(file):
    layer, *inner = file.relative_to(ROOT).parent.parts
    return ".".join([LAYERS[layer], *inner])


@functools.cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file):
    """Yields the absolute name of everything that `file` imports, wherever in it."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package_of(file).split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def layer_of(file):
    return file.relative_to(ROOT).parts[0]


def forbidden(file):
    """The packages that a file must not import."""
    found = []
    if layer_of(file) == "tff_mf":
        found += ["tff_mf.aggregators", "tff_mf.experiments", "aggregators", "experiments"]
        found += ["tensorflow_federated", "matplotlib"]
        if package_of(file) != "tff_mf.noise.jax" and file.name != "optax.py":
            found += ["jax", "optax", "tff_mf.noise.jax"]
        if package_of(file) != "tff_mf.noise.torch" and file.name != "torch.py":
            found += ["torch", "tff_mf.noise.torch"]
        name = package_of(file).removeprefix("tff_mf.")
        if name == "conformance" and file.name == "adapters.py":
            # Around the classes of others: it imports what they come with when one is judged.
            return found
        if not any(f"{name}.".startswith(f"{each}.") for each in TENSORFLOW):
            found += ["tensorflow", "tensorflow_privacy", "tensorflow_probability"]
            found += [f"tff_mf.{inner}" for inner in TENSORFLOW]
    if layer_of(file) == "aggregators":
        found += ["tff_mf.experiments", "experiments"]
    return found


def test_imports_point_down():
    assert "tff_mf.mechanisms.BLT" in set(imported(ROOT / "tff_mf" / "__init__.py"))
    wrong = {
        (str(file), name)
        for file in FILES
        for name in imported(file)
        for each in forbidden(file)
        if f"{name}.".startswith(f"{each}.")
    }
    assert wrong == set()


def private_imports(file):
    """Yields what `file` imports from a private module of a package that it is no part of, or of another layer."""
    package = package_of(file)
    layer = LAYERS[layer_of(file)]
    for name in imported(file):
        parts = name.split(".")
        private = next((index for index, part in enumerate(parts) if part.startswith("_") and part != "__init__"), None)
        if parts[0] != "tff_mf" or not private:
            continue
        owner = ".".join(parts[:private])
        of_layer = max((each for each in LAYERS.values() if f"{owner}.".startswith(f"{each}.")), key=len)
        if layer != of_layer or not f"{package}.".startswith(f"{owner}."):
            yield ".".join(parts[: private + 1])


def test_private_modules_are_imported_by_their_own_package_only():
    assert {(str(file), name) for file in FILES for name in private_imports(file)} == set()


def at_import(node):
    """Yields every node that runs when a module is imported: bodies of functions do not, their decorators do."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for decorator in getattr(child, "decorator_list", ()):
                yield from at_import(decorator)
        else:
            yield from at_import(child)


def test_nothing_global_is_changed_by_an_import():
    """Neither the folder of temporary files, anywhere, nor what Python does at its end, when a module is imported."""
    for file in FILES:
        stored = {
            ast.unparse(each) for each in ast.walk(tree_of(file)) if isinstance(getattr(each, "ctx", 0), ast.Store)
        }
        assert "tempfile.tempdir" not in stored, file
        loaded = {ast.unparse(each) for each in at_import(tree_of(file)) if isinstance(each, ast.Attribute)}
        assert "atexit.register" not in loaded, file


NAMES = """
AmplifiedBands ArtifactError BLT BMinSep BallsInBins BallsInBinsEstimator Banded
BandedPlusLowRank BandedToeplitz CohortSecret CyclicPoisson Dense EstimatedEpsilon FixedEpoch Grid Guarantee Identity
InputError LearningRates Level LinearSchedule Mechanism MinSep Momentum MomentumWithRates OptimizedFor Order
Participation Plan Poisson PrefixSum Sampling ScaledBLT Search SearchStatus SensitivityResult
SingleParticipation Tree Workload adaptive_clipping_guarantee amplified_bands
balls_in_bins_gram calibrate_noise_multiplier compose_guarantees epsilon explain_sensitivity guarantee
least_loss load max_error max_loss optimize_banded
optimize_banded_plus_low_rank optimize_banded_toeplitz optimize_blt optimize_dense
optimize_scaled_blt pattern_sensitivity plan restart_sensitivity rms_error
rms_loss save sensitivity zcdp_rho
""".split()  # noqa: SIM905


def test_import_brings_in_no_framework():
    heavy = "tensorflow tensorflow_federated tensorflow_privacy jax matplotlib dp_accounting pandas"
    program = f"import sys, tff_mf; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""Installs three layers, kept apart at the top of the checkout, under the one import name `tff_mf`."""

import pathlib
import shutil

import setuptools
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent
LAYERS = {"tff_mf": "tff_mf", "tff_mf.aggregators": "aggregators", "tff_mf.experiments": "experiments"}


class BuildWithPins(build_py):
    """Puts the pins into the wheel: `tff-mf doctor --requirements` prints them where there is no checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copy(HERE / "requirements.txt", pathlib.Path(self.build_lib) / "tff_mf" / "requirements.txt")


def packages() -> list[str]:
    found = []
    for name, folder in LAYERS.items():
        found.append(name)
        found.extend(f"{name}.{inner}" for inner in setuptools.find_packages(str(HERE / folder)))
    return found


setuptools.setup(
    name="tff-mf",
    version="0.1.0",
    description="Matrix-factorization noise for differentially private federated learning, for TensorFlow Federated.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires="==3.11.*",
    package_dir=LAYERS,
    packages=packages(),
    package_data={"tff_mf": ["py.typed"], "tff_mf.experiments.presets": ["*.toml"]},
    cmdclass={"build_py": BuildWithPins},
    # Floor 1 only. TensorFlow Federated cannot be among them: its own pins can no longer be met, so
    # naming it would make this wheel uninstallable. `requirements.txt` installs it.
    install_requires=[
        "click>=8.1",
        "dp-accounting>=0.4.3",
        "numpy>=1.25",
        "safetensors>=0.4",
        "scipy>=1.9.3",
    ],
    extras_require={
        "plot": ["matplotlib>=3.8"],
        "fuzz": ["atheris>=3.0"],
        "test": ["hypothesis>=6.100", "mpmath>=1.3", "pytest>=8", "pytest-xdist>=3.6"],
    },
    entry_points={"console_scripts": ["tff-mf=tff_mf.experiments.cli:main"]},
)

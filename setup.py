"""Maps three layers, kept apart at the top of the checkout, to one import name; the rest is in pyproject.toml."""

import shutil

import setuptools
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

LAYERS = {"tff_mf": "tff_mf", "tff_mf.aggregators": "aggregators", "tff_mf.experiments": "experiments"}


class BuildWithPins(build_py):
    """Puts the pins into the wheel, for `tff-mf doctor --requirements`, and nothing that an earlier build left."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            shutil.copy("requirements.txt", f"{self.build_lib}/tff_mf")


class WithLicense(egg_info):
    """Names the license as setuptools does only with a newer `packaging` than TensorFlow Federated's pin."""

    def run(self):
        self.distribution.metadata.license_expression = self.distribution.metadata.license
        super().run()


setuptools.setup(
    license="Apache-2.0",
    package_dir=LAYERS,
    packages=[
        package
        for name, folder in LAYERS.items()
        for package in (name, *(f"{name}.{inner}" for inner in setuptools.find_packages(folder)))
    ],
    cmdclass={"build_py": BuildWithPins, "egg_info": WithLicense},
)

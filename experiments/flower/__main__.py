"""`python -m tff_mf.experiments.flower FOLDER [--of RUN|BUNDLE]` writes a Flower app: one to begin with, or a run's."""

import argparse
import sys

from tff_mf.base.errors import InputError

from . import app

parser = argparse.ArgumentParser(prog="python -m tff_mf.experiments.flower", description="Writes a Flower app.")
parser.add_argument("folder", metavar="FOLDER", help="folder of the app; must be new or empty")
parser.add_argument("--of", metavar="RUN|BUNDLE", help="folder with the mechanism, the noise and the rounds of the app")
parser.add_argument("--framework", metavar="NAME", default="numpy", help="numpy or torch: what the model is written in")
given = parser.parse_args()
try:
    app.write(given.folder, of=given.of, framework=given.framework)
except InputError as error:
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"Next: cd {given.folder} && flwr run .")

"""`python -m tff_mf.experiments.flower FOLDER` writes a Flower app to begin with."""

import argparse
import sys

from tff_mf.base.errors import InputError

from . import app

parser = argparse.ArgumentParser(prog="python -m tff_mf.experiments.flower", description="Writes a Flower app.")
parser.add_argument("folder", metavar="FOLDER", help="folder of the app; must be new or empty")
given = parser.parse_args()
try:
    app.write(given.folder)
except InputError as error:
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"Next: cd {given.folder} && flwr run .")

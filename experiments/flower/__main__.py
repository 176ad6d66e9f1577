"""`python -m tff_mf.experiments.flower FOLDER` writes a Flower app to begin with."""

import sys

from tff_mf.errors import InputError

from . import app

if len(sys.argv) != 2:
    sys.exit("usage: python -m tff_mf.experiments.flower FOLDER")
try:
    app.write(sys.argv[1])
except InputError as error:
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"Next: cd {sys.argv[1]} && flwr run .")

"""Names of the files that the runner reads in a bundle, and of the files of a deployment."""

# In a bundle. The manifest names every other file.
MANIFEST, MANIFEST_VERSION = "manifest.json", 2
INITIAL, SETTINGS = "server/initial.safetensors", "run.json"
# The function of each SavedModel.
SIGNATURE = "serving_default"

# In the folder of a deployment.
JOURNAL, LOCK, SENT, SUM = "journal.jsonl", ".lock", "sent.safetensors", "sum.safetensors"
STATES, UPDATES, TAKEN, MODELS = "state", "updates", "taken", "models"
SUFFIX = ".safetensors"

"""Names of the files of a bundle, and of its stages; those that the runner reads are the runner's."""

from ..run_folder.names import MECHANISM, PLANNED, PLANNED_TEXT, RUN_JSON, SETTINGS_TOML, VOCABULARY
from .runner import INITIAL as INITIAL
from .runner import MANIFEST as MANIFEST

POLICY, DEVICE_POLICY = "participation.json", "device-policy.json"
TOKENIZE = "device/tokenize"
LITE = "device/work.tflite"
RUNNER = "runner.py"
_SERVER = ("initialize", "prepare", "zero", "accumulate", "merge", "report", "update", "replay")
STAGES = {**{name: f"server/{name}" for name in _SERVER}, "work": "device/work"}
FORMS = (
    *(f"map_reduce/{name}" for name in ("prepare", "work", "zero", "accumulate", "merge", "report", "update")),
    *("distribute_aggregate/server_prepare", "distribute_aggregate/server_to_client_broadcast"),
    *("distribute_aggregate/client_work", "distribute_aggregate/client_to_server_aggregation"),
    "distribute_aggregate/server_result",
)
_SAVED_MODEL = ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")
# Every file of every bundle, except the model for TensorFlow Lite, which some bundles lack.
FILES = (
    *(RUN_JSON, MECHANISM, SETTINGS_TOML, PLANNED, PLANNED_TEXT, POLICY, DEVICE_POLICY, VOCABULARY, INITIAL, RUNNER),
    *(f"forms/{name}.pb" for name in FORMS),
    *(f"{folder}/{name}" for folder in (*STAGES.values(), TOKENIZE) for name in _SAVED_MODEL),
)

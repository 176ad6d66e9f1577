"""Names of the files in a run's folder."""

RUN_JSON = "run.json"
MECHANISM = "mechanism.safetensors"
SETTINGS_TOML = "configuration.toml"

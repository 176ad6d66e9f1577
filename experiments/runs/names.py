"""Names of the files and folders in a run's folder: every package that uses one imports its name from here."""

# Written before the first round, and left as they are.
RUN_JSON = "run.json"
PLAN, MECHANISM = "plan.json", "mechanism.safetensors"
SETTINGS_TOML = "configuration.toml"
# Of a private training: the model that it began with, which its export begins with.
FIRST_MODEL = "first_model.safetensors"
PLANNED, PLANNED_TEXT, PLANNED_PAGE = "planned.json", "planned.md", "planned.html"

# Written round by round.
LEDGER = "ledger.jsonl"
METRICS = "metrics.csv"
# Clients that a private training was evaluated on: they may not train.
EVALUATED = "evaluated.json"
CHECKPOINTS = "checkpoints"
# In the folder of the checkpoints: what secret cohorts follow from.
COHORTS = "cohorts.key"

# Written at the end.
VOCABULARY = "vocabulary.json"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
REPORT, REPORT_TEXT, REPORT_PAGE = "report.json", "report.md", "report.html"

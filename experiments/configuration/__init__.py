"""Settings of a run: presets, TOML files and flags, laid over each other and checked."""

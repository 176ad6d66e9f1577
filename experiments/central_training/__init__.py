"""Central training by name: data sets, networks, presets, and one run in a folder."""

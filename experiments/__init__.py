"""Experiments: data sets, client sampling, training, privacy reports, deployment bundles and the `tff-mf` command."""

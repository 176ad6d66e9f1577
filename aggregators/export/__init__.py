"""Exports a learning process as SavedModels and TensorFlow Lite models, which run without TFF."""

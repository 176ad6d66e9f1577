"""The folder of a run: the names of its files, and their readers and writers, one file a module."""

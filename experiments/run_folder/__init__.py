"""The folder of a run: names of its files, and their readers and writers."""

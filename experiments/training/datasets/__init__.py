"""Data sets of text by client, as files in the format that StackOverflow ships in."""

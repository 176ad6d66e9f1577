"""What everything stands on: errors, checks of single values, files, sums and matrices in a fixed order."""

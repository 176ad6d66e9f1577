"""The problem: who takes part, by which draws, and what is estimated."""

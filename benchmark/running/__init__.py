"""Sweeps: which cell comes next, how it is measured, when it ends."""

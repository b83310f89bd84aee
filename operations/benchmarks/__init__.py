"""Runs of a benchmark: wished for, agreed to, begun, read, kept and compared."""

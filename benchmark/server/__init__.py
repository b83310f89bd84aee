"""The engine's side: what it is, and what its own metrics say meanwhile."""

"""The work: what takes several steps over several rooms."""

"""The rehearsal stage: simulated engines and control planes that the real clients talk to."""

"""The planner: what a model is, what it takes, what fits."""

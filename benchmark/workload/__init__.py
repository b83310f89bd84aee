"""What is asked: prompts of exact length, datasets, options."""

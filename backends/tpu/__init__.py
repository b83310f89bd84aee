"""Cloud TPU v6e: found, booted, served from, and given back."""

"""Raw samples to figures: statistics, intervals, files."""

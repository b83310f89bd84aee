"""A deployment explained: its flags in numbers, what they trade, its boot, what is good there."""

"""What a model would need at a place: does it fit, how fast, with which flags, at what price."""

"""What a model says of a reduced log: words that cite their lines, never facts."""

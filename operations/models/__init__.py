"""Models themselves: which there are, where they lie, how they are copied, their token."""

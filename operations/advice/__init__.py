"""Models, targets and clouds held against each other, for somebody who has to choose."""

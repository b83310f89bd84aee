"""What the tests of `planner` share."""

from hypothesis import settings

# How long an example takes is the machine's business, not the test's.
settings.register_profile("no-clock", deadline=None, max_examples=60)
settings.load_profile("no-clock")

"""Hypothesis without deadlines: the machines that run these tests do other work too."""

from hypothesis import settings

settings.register_profile("pure", deadline=None, max_examples=40)
settings.load_profile("pure")

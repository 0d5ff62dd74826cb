"""Tests of the package: its modules, and its stages together with stages of `windlass`."""

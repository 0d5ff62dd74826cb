"""Tests of the kit: of its parts, and of its stages between stages of `windlass`."""

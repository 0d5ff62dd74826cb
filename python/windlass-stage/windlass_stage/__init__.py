"""Stages of a pipeline: items pass from process to process, and each leaves exactly once."""

from .stage import Stage

__all__ = ["Stage"]

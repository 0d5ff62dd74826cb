"""Stages of a pipeline: items pass from process to process, and each item ends exactly once."""

from .ends import Ends
from .source import Source
from .stage import Stage
from .stage_pb2 import Ended, Missed

__all__ = ["Ended", "Ends", "Missed", "Source", "Stage"]

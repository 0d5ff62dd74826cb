"""`windlass pipeline measure` puts load on stages in Python, and receives the end of every item."""

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path

from .pipeline import TIMEOUT, Case, next_flags, python, windlass

PIPELINE = """
name: hop
input: 1KiB
stages:
- {name: first, image: example.com/app:1, output: 1KiB, on: [{cpus: 1, time: 1ms}]}
- {name: end, image: example.com/app:1, output: 1KiB, on: [{cpus: 1, time: 1ms}]}
links:
- {from: first, to: end}
"""

SIZE = {"cpu": "4", "memory": "8Gi", "pods": "110"}

#: A node for the prediction. The stages run on this machine.
NODES = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node-1"},
            "spec": {},
            "status": {
                "capacity": SIZE,
                "allocatable": SIZE,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    ],
}


class Measure(Case):
    """The source and the listener of the command."""

    async def test_windlass_receives_the_end_of_every_item_of_a_stage_in_python(self) -> None:
        end = python(self, "letter", "end")
        first = python(self, "letter", "first", *next_flags("end", end))
        with tempfile.TemporaryDirectory() as folder:
            pipeline, nodes = Path(folder) / "pipeline.yaml", Path(folder) / "nodes.json"
            pipeline.write_text(PIPELINE)
            nodes.write_text(json.dumps(NODES))
            words = [windlass(), "pipeline", "measure", str(pipeline), "--from", str(nodes), "--for", "2s"]
            words += ["-o", "json", "--first", first.address, "--end", f"end={end.address}"]
            result = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        self.assertIn('"end"', result.stdout)

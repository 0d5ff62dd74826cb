"""The checked-in messages are what the `.proto` file says."""

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from google.protobuf import descriptor_pb2

from windlass_stage import stage_pb2

#: Set to rewrite `stage_pb2.py` instead of comparing with it. Code of a newer generator needs a newer protobuf: raise
#: the bound of `pyproject.toml` with it.
UPDATE = "WINDLASS_UPDATE_GENERATED"

ROOT = Path(__file__).parent.parent
PROTO = ROOT.parent.parent / "crates/stage/proto/stage.v1.proto"
NAME = "windlass_stage/stage.proto"


class Generated(unittest.TestCase):
    """Compares meanings, since each generator writes other text."""

    def test_generated_code_matches_the_proto(self) -> None:
        try:
            from grpc_tools import protoc
        except ImportError:
            reason = "left out: this Python has no grpcio-tools"
            print(reason, file=sys.stderr)
            raise unittest.SkipTest(reason) from None
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / NAME).parent.mkdir()
            shutil.copy(PROTO, Path(folder) / NAME)
            out = [f"--python_out={ROOT}", f"--pyi_out={ROOT}"] if UPDATE in os.environ else []
            found = Path(folder) / "found"
            words = ["protoc", f"-I{folder}", f"--descriptor_set_out={found}", *out, NAME]
            self.assertEqual(protoc.main(words), 0)
            [fresh] = descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes()).file
        kept = descriptor_pb2.FileDescriptorProto()
        stage_pb2.DESCRIPTOR.CopyToProto(kept)
        # Names that follow from the others; the generator leaves them out.
        for field in (field for message in fresh.message_type for field in message.field):
            field.ClearField("json_name")
        self.assertEqual(kept, fresh, f"stage_pb2.py is stale; run this test with {UPDATE}=1")

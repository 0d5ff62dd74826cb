"""The checked-in messages are those of the `.proto` file."""

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from google.protobuf import descriptor_pb2

from windlass_stage import stage_pb2

#: Set to rewrite `stage_pb2.py` instead of comparing with it. Code of a newer generator needs a newer protobuf: then
#: raise the bound in `pyproject.toml`, too.
UPDATE = "WINDLASS_UPDATE_GENERATED"

ROOT = Path(__file__).parent.parent
PROTO = ROOT.parent.parent / "crates/stage/proto/stage.v1.proto"
NAME = "windlass_stage/stage.proto"


class Generated(unittest.TestCase):
    """Compares descriptors, since the text differs between versions of the generator."""

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
            descriptor_set = Path(folder) / "descriptor_set"
            words = ["protoc", f"-I{folder}", f"--descriptor_set_out={descriptor_set}", *out, NAME]
            self.assertEqual(protoc.main(words), 0)
            [fresh] = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set.read_bytes()).file
        checked_in = descriptor_pb2.FileDescriptorProto()
        stage_pb2.DESCRIPTOR.CopyToProto(checked_in)
        # The generator leaves out the JSON names, which derive from the field names.
        for field in (field for message in fresh.message_type for field in message.field):
            field.ClearField("json_name")
        self.assertEqual(checked_in, fresh, f"stage_pb2.py is stale; run this test with {UPDATE}=1")

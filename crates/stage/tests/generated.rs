//! The checked-in wire code is identical to the code generated from the `.proto` file.

use std::{env, fs, path::Path};

/// Set to rewrite `src/generated` instead of comparing with it.
const UPDATE: &str = "WINDLASS_UPDATE_GENERATED";

const PROTO: &str = "stage.v1.proto";
const GENERATED: &str = "windlass.stage.v1.rs";

#[test]
fn generated_code_matches_the_proto() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let descriptors = protox::compile([PROTO], [root.join("proto")]).expect("the proto compiles");
    tonic_prost_build::configure()
        .out_dir(folder.path())
        .build_transport(true)
        // `Bytes` payloads are slices of the receive buffer.
        .bytes(".")
        .compile_fds(descriptors)
        .expect("code is generated");

    let generated = fs::read_to_string(folder.path().join(GENERATED)).expect("generated");
    let path = root.join("src/generated").join(GENERATED);
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, &generated).expect("the source tree is writable");
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == generated, "{GENERATED} is stale; run this test with {UPDATE}=1");
}

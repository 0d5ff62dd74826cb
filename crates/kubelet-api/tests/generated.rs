//! The checked-in wire code is what the `.proto` files say.

use std::{env, fs, path::Path};

/// Set to rewrite `src/generated` instead of comparing with it.
const UPDATE: &str = "WINDLASS_UPDATE_GENERATED";

const PROTOS: [&str; 2] = ["deviceplugin.v1beta1.proto", "podresources.v1.proto"];

#[test]
fn generated_code_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a temporary folder");
    let descriptors = protox::compile(PROTOS, [root.join("proto")]).expect("the protos compile");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .build_transport(true)
        // Equal messages have equal bytes.
        .btree_map(".")
        .compile_fds(descriptors)
        .expect("code is generated");

    for file in ["v1beta1.rs", "v1.rs"] {
        let fresh = fs::read_to_string(out.path().join(file)).expect("generated");
        let kept = root.join("src/generated").join(file);
        if env::var_os(UPDATE).is_some() {
            fs::write(&kept, &fresh).expect("the source tree is writable");
        }
        let stored = fs::read_to_string(&kept).unwrap_or_default();
        assert!(stored == fresh, "{file} is stale; run this test with {UPDATE}=1");
    }
}

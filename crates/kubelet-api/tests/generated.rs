//! The generated code in `src/generated` matches the `.proto` files.

use std::{env, fs, path::Path};

/// Environment variable. If set, the test rewrites `src/generated` before it compares.
const UPDATE: &str = "WINDLASS_UPDATE_GENERATED";

/// Each `.proto` file, with the name of the file generated from it.
const PROTOS: [(&str, &str); 6] = [
    ("deviceplugin.v1beta1.proto", "v1beta1.rs"),
    ("podresources.v1.proto", "v1.rs"),
    ("pluginregistration.v1.proto", "pluginregistration.rs"),
    ("dra.v1.proto", "k8s.io.kubelet.pkg.apis.dra.v1.rs"),
    ("dra.v1beta1.proto", "k8s.io.kubelet.pkg.apis.dra.v1beta1.rs"),
    ("dra-health.v1alpha1.proto", "v1alpha1.rs"),
];

#[test]
fn generated_code_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a temporary folder");
    let descriptors = protox::compile(PROTOS.map(|(proto, _)| proto), [root.join("proto")])
        .expect("the protos compile");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .build_transport(true)
        // Sorted maps, so that equal messages have equal bytes.
        .btree_map(".")
        .compile_fds(descriptors)
        .expect("code is generated");

    for (_, file) in PROTOS {
        let fresh = fs::read_to_string(out.path().join(file)).expect("the file was generated");
        let path = root.join("src/generated").join(file);
        if env::var_os(UPDATE).is_some() {
            fs::write(&path, &fresh).expect("the source tree is writable");
        }
        let checked_in = fs::read_to_string(&path).unwrap_or_default();
        assert!(checked_in == fresh, "{file} is stale; run this test with {UPDATE}=1");
    }
}

//! Images of programs, made by `deploy/image`, for the node's runtime.

use std::{path::Path, process::Command};

/// Variable with the program that imports an image. Its argument is the path of a tar.
pub(crate) const IMPORT: &str = "WINDLASS_E2E_IMPORT";

const MAKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/image");

/// Makes the image of a program and gives it to the node's runtime, which keeps it.
pub(crate) fn import(program: &Path, name: Option<&str>, importer: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tar = folder.path().join("image.tar");
    let status = Command::new(MAKER).arg(program).arg(&tar).args(name).status();
    assert!(status.expect("bash runs").success(), "no image of {}", program.display());
    let imported = Command::new(importer).arg(&tar).status().expect("a program");
    assert!(imported.success(), "{IMPORT} failed");
}

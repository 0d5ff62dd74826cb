//! Images of programs, made by `deploy/image`, for the node's runtime.

use std::{path::Path, process::Command};

/// The program that imports an image; it gets the path of a tar.
pub(crate) const IMPORT: &str = "WINDLASS_E2E_IMPORT";

const MAKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/image");

/// Makes the image of a program and gives it to the node's runtime, which keeps it.
pub(crate) fn import(program: &Path, name: Option<&str>, importer: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tar = folder.path().join("image.tar");
    let made = Command::new(MAKER).arg(program).arg(&tar).args(name).status();
    assert!(made.expect("bash runs").success(), "no image of {}", program.display());
    let given = Command::new(importer).arg(&tar).status().expect("a program");
    assert!(given.success(), "{IMPORT} failed");
}

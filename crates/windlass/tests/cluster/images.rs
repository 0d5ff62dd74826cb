//! Images of programs, built by `deploy/image`, for the node's container runtime.

use std::{path::Path, process::Command};

/// Variable with the program that imports an image. Its argument is the path of a tar.
pub(crate) const IMPORT: &str = "WINDLASS_E2E_IMPORT";

const IMAGE_TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/image");

/// Builds the image of a program and imports it into the node's container runtime, where it stays.
pub(crate) fn import(program: &Path, name: Option<&str>, importer: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tar = folder.path().join("image.tar");
    let status = Command::new(IMAGE_TOOL).arg(program).arg(&tar).args(name).status();
    assert!(status.expect("bash runs").success(), "no image of {}", program.display());
    let status = Command::new(importer).arg(&tar).status().expect("a program");
    assert!(status.success(), "{IMPORT} failed");
}

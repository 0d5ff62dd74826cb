//! The kit for Python: its own tests, with stages of this program before and after its own.

use std::{
    env,
    ffi::OsString,
    process::{Command, Stdio},
};

use crate::program::text;

/// The package's folder.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/windlass-stage");

/// An interpreter with grpcio; none prints a notice.
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn python() -> Option<OsString> {
    let named = env::var_os("WINDLASS_PYTHON");
    if named.is_none() {
        eprintln!("left out: WINDLASS_PYTHON names no interpreter that has grpcio");
    }
    named
}

/// The package's tests, with no other variables of whoever runs them.
fn tests(python: OsString) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "unittest"]).current_dir(PACKAGE).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    // The package's folder stays as it is.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("WINDLASS", env!("CARGO_BIN_EXE_windlass"));
    command
}

#[test]
fn the_kit_for_python_passes_its_tests_between_stages_of_this_program() {
    let Some(python) = python() else { return };
    let output = tests(python).output().expect("the interpreter runs");
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("\nRan ") && !told.contains("names no program"), "{told}");
}

//! The Python package for stages: its tests, with stages of this program before and after stages in Python.

use std::{
    env,
    ffi::OsString,
    process::{Command, Stdio},
};

use crate::program::text;

/// The package's folder.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/windlass-stage");

/// Interpreter with grpcio. Prints a notice if the variable is not set.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn python() -> Option<OsString> {
    let interpreter = env::var_os("WINDLASS_PYTHON");
    if interpreter.is_none() {
        eprintln!("SKIPPED: set WINDLASS_PYTHON to an interpreter with grpcio");
    }
    interpreter
}

/// Command that runs the package's tests, without the developer's `WINDLASS_*` variables.
fn tests(python: OsString) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "unittest"]).current_dir(PACKAGE).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    // Write no bytecode into the package's folder.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("WINDLASS", env!("CARGO_BIN_EXE_windlass"));
    command
}

#[test]
fn the_python_package_passes_its_tests_between_stages_of_this_program() {
    let Some(python) = python() else { return };
    let output = tests(python).output().expect("the interpreter runs");
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("\nRan ") && !stderr.contains("names no program"), "{stderr}");
}

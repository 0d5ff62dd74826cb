//! A machine in a temporary folder, and its files.

use std::{fs, path::PathBuf};

use tempfile::TempDir;
use windlass_machine::{Machine, Profile};

/// A machine whose library is any file: these tests do not load it.
pub(crate) fn machine(profile: &str) -> (TempDir, Machine) {
    made(&Profile::named(profile).expect("built in"))
}

/// The same for any profile.
pub(crate) fn made(profile: &Profile) -> (TempDir, Machine) {
    // In memory where the machine has it: a simulated machine is a thousand small files.
    let dir = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder");
    let driver = dir.path().join("driver.so");
    fs::write(&driver, "not loaded").expect("a file");
    let machine = Machine::create(&dir.path().join("machine"), profile, &driver).expect("made");
    (dir, machine)
}

/// The text of a file.
pub(crate) fn read(machine: &Machine, path: &str) -> String {
    let path = machine.host_root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a file, folder or node is there.
pub(crate) fn exists(machine: &Machine, path: &str) -> bool {
    machine.host_root().join(path).exists()
}

/// Where a link points, as written.
pub(crate) fn link(machine: &Machine, path: &str) -> String {
    let target = fs::read_link(machine.host_root().join(path)).unwrap_or_else(|_| PathBuf::new());
    target.display().to_string()
}

/// A file has one line, and this is it.
#[track_caller]
pub(crate) fn check(machine: &Machine, path: &str, expected: &str) {
    assert_eq!(read(machine, path).trim(), expected, "{path}");
}

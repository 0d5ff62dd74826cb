//! Test machine in a temporary folder, and readers of its files.

use std::{fs, path::PathBuf};

use tempfile::TempDir;
use windlass_machine::{Machine, MachineProfile};

/// Machine with an arbitrary file as library: these tests do not load the library.
pub(crate) fn machine(profile: &str) -> (TempDir, Machine) {
    create(&MachineProfile::named(profile).expect("built in"))
}

/// Machine of any profile, with an arbitrary file as library.
pub(crate) fn create(profile: &MachineProfile) -> (TempDir, Machine) {
    // Prefer a folder in memory: a simulated machine has about a thousand small files.
    let dir = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder");
    let driver = dir.path().join("driver.so");
    fs::write(&driver, "not loaded").expect("a file");
    let machine =
        Machine::create(&dir.path().join("machine"), profile, &driver).expect("a machine");
    (dir, machine)
}

/// Text of a file.
pub(crate) fn read(machine: &Machine, path: &str) -> String {
    let path = machine.host_root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// True if a file, folder or node exists.
pub(crate) fn exists(machine: &Machine, path: &str) -> bool {
    machine.host_root().join(path).exists()
}

/// Literal target of a link.
pub(crate) fn link(machine: &Machine, path: &str) -> String {
    let target = fs::read_link(machine.host_root().join(path)).unwrap_or_else(|_| PathBuf::new());
    target.display().to_string()
}

/// Checks the only line of a file.
#[track_caller]
pub(crate) fn check(machine: &Machine, path: &str, expected: &str) {
    assert_eq!(read(machine, path).trim(), expected, "{path}");
}

//! The program installs itself in a folder.

use std::{
    fs::{self, Metadata, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Output},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass-hook");

/// Runs the program under a umask that removes what it can.
fn install(arguments: &[&Path], current: &Path) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" install \"$@\"", PROGRAM]).args(arguments);
    command.current_dir(current).output().expect("it runs")
}

fn succeed(folder: &Path) {
    let output = install(&[folder], Path::new("/"));
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

fn mode(found: &Metadata) -> u32 {
    found.permissions().mode() & 0o7777
}

#[test]
fn the_program_is_installed_once_and_replaces_another() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = temporary.path().join("windlass/bin");
    let installed = folder.join("windlass-hook");
    let found = || fs::symlink_metadata(&installed).expect("there");
    succeed(&folder);
    let program = fs::read(PROGRAM).expect("a program");
    let first = found();
    assert_eq!((mode(&fs::metadata(&folder).expect("made")), mode(&first)), (0o755, 0o755));
    succeed(&folder);
    assert_eq!(found().ino(), first.ino(), "an equal program stays");
    fs::set_permissions(&installed, Permissions::from_mode(0o644)).expect("set");
    succeed(&folder);
    assert_eq!(mode(&found()), 0o755);
    fs::write(&installed, "an older version").expect("written");
    succeed(&folder);
    assert!(fs::read(&installed).expect("there") == program, "it is a copy");
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no draft is left");
    let help = Command::new(&installed).arg("--help").output().expect("it runs");
    assert!(help.status.success(), "{help:?}");
}

#[test]
fn a_failed_installation_says_why_in_one_line() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let occupied = temporary.path().join("occupied");
    fs::write(&occupied, "").expect("written");
    let why = format!("cannot write {}/windlass-hook: ", occupied.display());
    let option = Path::new("--help");
    for (arguments, code, reason) in [
        (&[occupied.as_path()][..], 1, why.as_str()),
        (&[], 64, "see windlass-hook --help"),
        (&[option], 64, "see windlass-hook --help"),
        (&[&occupied, &occupied], 64, "see windlass-hook --help"),
    ] {
        let output = install(arguments, temporary.path());
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.starts_with("windlass-hook: ") && said.contains(reason), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 1, "nothing is made");
}

//! Installs the hook in folders through `windlass-hook install`.

use std::{
    fs::{self, Metadata, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Output},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass-hook");

/// Runs the installation under umask 077, which must not affect the modes.
fn install(arguments: &[&Path], current: &Path) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" install \"$@\"", PROGRAM]).args(arguments);
    command.current_dir(current).output().expect("the program starts")
}

fn check_install(folder: &Path) {
    let output = install(&[folder], Path::new("/"));
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

fn mode(metadata: &Metadata) -> u32 {
    metadata.permissions().mode() & 0o7777
}

#[test]
fn installation_replaces_only_a_different_program() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = temporary.path().join("windlass/bin");
    let installed = folder.join("windlass-hook");
    let metadata = || fs::symlink_metadata(&installed).expect("installed");
    check_install(&folder);
    let program = fs::read(PROGRAM).expect("a program");
    let first_metadata = metadata();
    assert_eq!(
        (mode(&fs::metadata(&folder).expect("created")), mode(&first_metadata)),
        (0o755, 0o755)
    );
    check_install(&folder);
    assert_eq!(metadata().ino(), first_metadata.ino(), "an identical program is not replaced");
    fs::set_permissions(&installed, Permissions::from_mode(0o644)).expect("set");
    check_install(&folder);
    assert_eq!(mode(&metadata()), 0o755);
    fs::write(&installed, "an older version").expect("written");
    check_install(&folder);
    assert!(fs::read(&installed).expect("installed") == program, "an identical copy");
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no temporary file remains");
    let help = Command::new(&installed).arg("--help").output().expect("the program starts");
    assert!(help.status.success(), "{help:?}");
}

#[test]
fn a_failed_installation_reports_one_line() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let occupied = temporary.path().join("occupied");
    fs::write(&occupied, "").expect("written");
    let failure = format!("cannot write {}/windlass-hook: ", occupied.display());
    let option = Path::new("--help");
    for (arguments, code, reason) in [
        (&[occupied.as_path()][..], 1, failure.as_str()),
        (&[], 64, "see windlass-hook --help"),
        (&[option], 64, "see windlass-hook --help"),
        (&[&occupied, &occupied], 64, "see windlass-hook --help"),
    ] {
        let output = install(arguments, temporary.path());
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("windlass-hook: ") && stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let entries = fs::read_dir(temporary.path()).expect("a folder").count();
    assert_eq!(entries, 1, "nothing is created");
}

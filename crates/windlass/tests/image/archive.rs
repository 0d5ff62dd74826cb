//! `deploy/archive`: a tar and a Debian package of a built program.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/archive");

/// Script that runs the real program: it is faster to pack than the program.
fn program(folder: &Path) -> PathBuf {
    let path = folder.join("windlass");
    let text = format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_windlass"));
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

fn archive(arguments: &[&Path]) -> Output {
    Command::new(SCRIPT).args(arguments).output().expect("bash runs")
}

fn output_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("a text")
}

fn members(tool: &str, arguments: &[&str], file: &str) -> String {
    output_of(&Command::new(tool).args(arguments).arg(file).output().expect("the tool runs"))
}

#[test]
fn an_archive_has_the_plugin_completions_and_manual_pages_and_equal_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    let (first_folder, second_folder) = (folder.path().join("1"), folder.path().join("2"));
    let printed_paths = output_of(&archive(&[&program, &first_folder]));
    output_of(&archive(&[&program, &second_folder]));
    let tar = printed_paths.lines().find(|line| line.ends_with(".tar.gz")).expect("a tar");
    let tar_members = members("tar", &["tzf"], tar);
    for member in [
        "/bin/windlass\n",
        "/bin/kubectl-windlass\n",
        "/share/man/man1/windlass.1\n",
        "/share/man/man1/windlass-cluster-top.1\n",
        "/share/bash-completion/completions/windlass\n",
        "/share/fish/vendor_completions.d/windlass.fish\n",
        "/share/zsh/vendor-completions/_windlass\n",
        "/share/doc/windlass/copyright\n",
    ] {
        assert!(tar_members.contains(member), "{member} is missing: {tar_members}");
    }
    let is_package =
        |line: &&str| Path::new(line).extension().is_some_and(|extension| extension == "deb");
    match printed_paths.lines().find(is_package) {
        Some(package) => {
            let package_info = members("dpkg-deb", &["--info"], package);
            assert!(
                package_info.contains(&format!("Version: {}", env!("CARGO_PKG_VERSION"))),
                "{package_info}"
            );
        }
        None => eprintln!("SKIPPED: the Debian package, because dpkg-deb is missing"),
    }
    for file in fs::read_dir(&first_folder).expect("a folder") {
        let name = file.expect("readable").file_name();
        let bytes = |folder: &Path| fs::read(folder.join(&name)).expect("a file");
        assert!(bytes(&first_folder) == bytes(&second_folder), "{} differs", name.display());
    }
}

#[test]
fn a_wrong_program_is_refused_and_creates_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let other_program = folder.path().join("other");
    fs::write(&other_program, "#!/bin/sh\necho other 1.0\n").expect("written");
    fs::set_permissions(&other_program, fs::Permissions::from_mode(0o755)).expect("a program");
    let out_folder = folder.path().join("out");
    for (arguments, code, reason) in [
        (vec![&*other_program, &*out_folder], 1, "is not windlass"),
        (vec![Path::new("/nowhere/windlass"), &*out_folder], 1, "is no program"),
        (vec![&*other_program], 64, "usage"),
    ] {
        let output = archive(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
    assert!(!out_folder.exists());
}

#[test]
fn as_a_kubectl_plugin_cluster_commands_need_no_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin = folder.path().join("kubectl-windlass");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_windlass"), &plugin).expect("a link");
    let help = |arguments: &[&str]| {
        output_of(&Command::new(&plugin).args(arguments).output().expect("windlass runs"))
    };
    assert!(help(&["top", "--help"]).contains("kubectl-windlass cluster top"));
    assert!(help(&["--help"]).contains("doctor"), "the cluster's commands are listed");
    assert!(
        help(&["devices", "--help"]).contains("kubectl-windlass devices"),
        "other commands are unchanged"
    );
}

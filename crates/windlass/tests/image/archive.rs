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
    Command::new(SCRIPT).args(arguments).output().expect("bash is there")
}

fn output_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("a text")
}

fn members(tool: &str, arguments: &[&str], file: &str) -> String {
    output_of(&Command::new(tool).args(arguments).arg(file).output().expect("the tool is there"))
}

#[test]
fn an_archive_has_the_plugin_completions_and_manual_pages_and_equal_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    let (first, second) = (folder.path().join("1"), folder.path().join("2"));
    let printed = output_of(&archive(&[&program, &first]));
    output_of(&archive(&[&program, &second]));
    let tar = printed.lines().find(|line| line.ends_with(".tar.gz")).expect("a tar");
    let listed = members("tar", &["tzf"], tar);
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
        assert!(listed.contains(member), "{member} is missing: {listed}");
    }
    let is_package = |line: &&str| Path::new(line).extension().is_some_and(|it| it == "deb");
    match printed.lines().find(is_package) {
        Some(package) => {
            let facts = members("dpkg-deb", &["--info"], package);
            assert!(facts.contains(&format!("Version: {}", env!("CARGO_PKG_VERSION"))), "{facts}");
        }
        None => eprintln!("LEFT OUT: the Debian package, because dpkg-deb is missing"),
    }
    for file in fs::read_dir(&first).expect("a folder") {
        let name = file.expect("readable").file_name();
        let bytes = |folder: &Path| fs::read(folder.join(&name)).expect("a file");
        assert!(bytes(&first) == bytes(&second), "{} differs", name.display());
    }
}

#[test]
fn a_wrong_program_is_refused_and_creates_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("other");
    fs::write(&other, "#!/bin/sh\necho other 1.0\n").expect("written");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("a program");
    let out = folder.path().join("out");
    for (arguments, code, reason) in [
        (vec![&*other, &*out], 1, "is not windlass"),
        (vec![Path::new("/nowhere/windlass"), &*out], 1, "is no program"),
        (vec![&*other], 64, "usage"),
    ] {
        let output = archive(&arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(reason), "{text}");
    }
    assert!(!out.exists());
}

#[test]
fn as_a_kubectl_plugin_cluster_commands_need_no_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin = folder.path().join("kubectl-windlass");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_windlass"), &plugin).expect("a link");
    let help = |words: &[&str]| {
        output_of(&Command::new(&plugin).args(words).output().expect("the program starts"))
    };
    assert!(help(&["top", "--help"]).contains("kubectl-windlass cluster top"));
    assert!(help(&["--help"]).contains("doctor"), "the cluster's commands are listed");
    assert!(
        help(&["devices", "--help"]).contains("kubectl-windlass devices"),
        "other commands are unchanged"
    );
}

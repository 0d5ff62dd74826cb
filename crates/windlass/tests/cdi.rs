//! `windlass cdi`: generates CDI documents, lists their device names, and checks them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    // The developer's environment must not configure the program.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).output().expect("windlass runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Simulated machine, with a folder for its CDI documents.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix("wl").tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
        let fixture = Self { folder: folder.expect("a temporary folder") };
        let machine = fixture.path("machine");
        let output = run(&["machine", "create", &machine, "--machine", "t4-edge"]);
        assert!(output.status.success(), "{}", stderr(&output));
        fixture
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn generate(&self, flags: &[&str]) -> Output {
        let (host, library) = (self.path("machine/host"), self.path("machine/libnvidia-ml.so.1"));
        let host = ["--host-root", &host, "--nvml-library", &library, "--host-root-on-node", &host];
        run(&[&["cdi", "generate"], &host[..], flags].concat())
    }

    /// Writes the documents, and returns the path of the GPUs' document.
    fn write_documents(&self) -> PathBuf {
        let output = self.generate(&["--output-dir", &self.path("cdi")]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("SIMULATED machine t4-edge"), "{}", stderr(&output));
        let path = PathBuf::from(stdout(&output).trim());
        assert_eq!(path, Path::new(&self.path("cdi/windlass.dev-gpu.json")));
        path
    }
}

#[test]
fn documents_are_printed_as_they_would_be_written() {
    let fixture = Fixture::new();
    let output = fixture.generate(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), fs::read_to_string(fixture.write_documents()).expect("written"));
    assert!(stdout(&output).contains("libcuda.so.1"));
}

#[test]
fn relative_host_paths_become_absolute_in_documents() {
    let fixture = Fixture::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["cdi", "generate", "--host-root", "machine/host"]);
    command.args(["--nvml-library", "machine/libnvidia-ml.so.1"]);
    command.args(["--host-root-on-node", "machine/host"]).current_dir(&fixture.folder);
    let output = command.output().expect("windlass runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let node = format!("\"hostPath\": \"{}\"", fixture.path("machine/host/dev/nvidia0"));
    assert!(stdout(&output).contains(&node), "no {node} in {}", stdout(&output));
}

#[test]
fn generated_documents_are_listed_and_pass_the_check() {
    let fixture = Fixture::new();
    let folder = fixture.write_documents().parent().expect("a folder").display().to_string();
    let list = run(&["cdi", "list", &folder]);
    assert!(
        stdout(&list).lines().any(|line| line.starts_with("windlass.dev/gpu=GPU-")),
        "{list:?}"
    );
    let json = run(&["cdi", "list", &folder, "-o", "json"]);
    assert!(stdout(&json).contains("\"name\": \"windlass.dev/gpu=GPU-"), "{}", stdout(&json));
    let check = run(&["cdi", "check", &folder]);
    assert!(check.status.success(), "{}", stdout(&check));
    assert!(stdout(&check).ends_with("no mistake in 1 document\n"), "{}", stdout(&check));
    // As in a pod: the agent sees the host's files in one folder, and documents name them in another.
    let host = fixture.path("machine/host");
    let pod_check =
        run(&["cdi", "check", &folder, "--host-root", &host, "--host-root-on-node", &host]);
    assert!(pod_check.status.success(), "{}", stdout(&pod_check));
    let machine = fixture.path("machine");
    assert!(!run(&["cdi", "check", &folder, "--host-root", &machine]).status.success());
}

#[test]
fn every_mistake_is_printed_with_its_document_and_the_exit_code_is_1() {
    let fixture = Fixture::new();
    let valid = fs::read_to_string(fixture.write_documents()).expect("written");
    fs::write(fixture.path("cdi/b.yaml"), "cdiVersion: 0.3.0\nkind: a.b/c\ndevices: []\n")
        .expect("written");
    fs::write(fixture.path("cdi/c.json"), "{\n  \"kind\": 1\n}").expect("written");
    let absent = valid.replace("/dev/nvidiactl", "/dev/nvidiactl-that-is-not-there");
    fs::write(fixture.path("cdi/d.json"), absent).expect("written");
    fs::write(fixture.path("cdi/e.txt"), "no document").expect("written");
    let check = run(&["cdi", "check", &fixture.path("cdi")]);
    assert_eq!(check.status.code(), Some(1));
    for expected in [
        "b.yaml: devices: a document without devices is refused",
        "c.json: invalid type: integer `1`, expected a string at line 2 column 11",
        "d.json: every device: the host has no ",
        "windlass.dev-gpu.json: windlass.dev/gpu=GPU-",
    ] {
        assert!(stdout(&check).contains(expected), "{expected}: {}", stdout(&check));
    }
    assert!(stdout(&check).contains("d.json too: remove one"), "{}", stdout(&check));
    assert!(!stdout(&check).contains("e.txt"));
    assert_eq!(stderr(&check).trim(), "windlass: 4 mistakes in 4 documents");
}

#[test]
fn a_missing_path_is_misuse() {
    let check = run(&["cdi", "check", "/nowhere/at/all"]);
    assert_eq!(check.status.code(), Some(64));
    assert!(stderr(&check).contains("/nowhere/at/all does not exist"), "{}", stderr(&check));
}

#[test]
fn a_host_without_devices_is_reported_with_the_reason_of_each_source() {
    let fixture = Fixture::new();
    let empty_root = fixture.path("empty");
    fs::create_dir(&empty_root).expect("created");
    let output = run(&["cdi", "generate", "--host-root", &empty_root]);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    assert!(errors.contains("this host has no device for a CDI document:\n  amd "), "{errors}");
    assert!(errors.contains("nvidia  none: "), "{errors}");
}

//! `windlass cdi` as a person uses it: make documents, list their names, find their mistakes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    // The environment of whoever runs the tests configures nothing here.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).output().expect("windlass runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A simulated machine with a folder of documents that were generated for it.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix("wl").tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
        let scene = Self { folder: folder.expect("a temporary folder") };
        let machine = scene.path("machine");
        let made = run(&["machine", "create", &machine, "--machine", "t4-edge"]);
        assert!(made.status.success(), "{}", err(&made));
        scene
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn generate(&self, more: &[&str]) -> Output {
        let (host, library) = (self.path("machine/host"), self.path("machine/libnvidia-ml.so.1"));
        let host = ["--host-root", &host, "--nvml-library", &library, "--host-root-on-node", &host];
        run(&[&["cdi", "generate"], &host[..], more].concat())
    }

    /// Documents on disk, and the path of the one of GPUs.
    fn documents(&self) -> PathBuf {
        let output = self.generate(&["--output-dir", &self.path("cdi")]);
        assert!(output.status.success(), "{}", err(&output));
        assert!(err(&output).contains("SIMULATED machine t4-edge"), "{}", err(&output));
        let path = PathBuf::from(out(&output).trim());
        assert_eq!(path, Path::new(&self.path("cdi/windlass.dev-gpu.json")));
        path
    }
}

#[test]
fn documents_are_printed_as_they_would_be_written() {
    let scene = Scene::new();
    let printed = scene.generate(&[]);
    assert!(printed.status.success(), "{}", err(&printed));
    assert_eq!(out(&printed), fs::read_to_string(scene.documents()).expect("written"));
    assert!(out(&printed).contains("libcuda.so.1"));
}

#[test]
fn documents_of_a_machine_that_was_named_from_here_say_where_it_is_from_the_root() {
    let scene = Scene::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["cdi", "generate", "--host-root", "machine/host"]);
    command.args(["--nvml-library", "machine/libnvidia-ml.so.1"]);
    command.args(["--host-root-on-node", "machine/host"]).current_dir(&scene.folder);
    let output = command.output().expect("windlass runs");
    assert!(output.status.success(), "{}", err(&output));
    let node = format!("\"hostPath\": \"{}\"", scene.path("machine/host/dev/nvidia0"));
    assert!(out(&output).contains(&node), "no {node} in {}", out(&output));
}

#[test]
fn what_was_generated_is_listed_and_right() {
    let scene = Scene::new();
    let folder = scene.documents().parent().expect("a folder").display().to_string();
    let list = run(&["cdi", "list", &folder]);
    assert!(out(&list).lines().any(|line| line.starts_with("windlass.dev/gpu=GPU-")), "{list:?}");
    let json = run(&["cdi", "list", &folder, "-o", "json"]);
    assert!(out(&json).contains("\"name\": \"windlass.dev/gpu=GPU-"), "{}", out(&json));
    let check = run(&["cdi", "check", &folder]);
    assert!(check.status.success(), "{}", out(&check));
    assert!(out(&check).ends_with("no mistake in 1 document\n"), "{}", out(&check));
    // As in a pod, where the agent sees the host's files in one folder, and documents name another.
    let host = scene.path("machine/host");
    let here = run(&["cdi", "check", &folder, "--host-root", &host, "--host-root-on-node", &host]);
    assert!(here.status.success(), "{}", out(&here));
    let machine = scene.path("machine");
    assert!(!run(&["cdi", "check", &folder, "--host-root", &machine]).status.success());
}

#[test]
fn every_mistake_is_named_with_its_document_and_the_exit_code_says_that_there_are_some() {
    let scene = Scene::new();
    let right = fs::read_to_string(scene.documents()).expect("written");
    fs::write(scene.path("cdi/b.yaml"), "cdiVersion: 0.3.0\nkind: a.b/c\ndevices: []\n")
        .expect("written");
    fs::write(scene.path("cdi/c.json"), "{\n  \"kind\": 1\n}").expect("written");
    let absent = right.replace("/dev/nvidiactl", "/dev/nvidiactl-that-is-not-there");
    fs::write(scene.path("cdi/d.json"), absent).expect("written");
    fs::write(scene.path("cdi/e.txt"), "no document").expect("written");
    let check = run(&["cdi", "check", &scene.path("cdi")]);
    assert_eq!(check.status.code(), Some(1));
    for expected in [
        "b.yaml: devices: a document without devices is refused",
        "c.json: invalid type: integer `1`, expected a string at line 2 column 11",
        "d.json: every device: the host has no ",
        "windlass.dev-gpu.json: windlass.dev/gpu=GPU-",
    ] {
        assert!(out(&check).contains(expected), "{expected}: {}", out(&check));
    }
    assert!(out(&check).contains("d.json too: remove one"), "{}", out(&check));
    assert!(!out(&check).contains("e.txt"));
    assert_eq!(err(&check).trim(), "windlass: 4 mistakes in 4 documents");
}

#[test]
fn a_place_that_is_not_there_is_misuse() {
    let check = run(&["cdi", "check", "/nowhere/at/all"]);
    assert_eq!(check.status.code(), Some(64));
    assert!(err(&check).contains("/nowhere/at/all does not exist"), "{}", err(&check));
}

#[test]
fn a_host_without_devices_has_no_documents_and_says_why() {
    let scene = Scene::new();
    let empty = scene.path("empty");
    fs::create_dir(&empty).expect("made");
    let output = run(&["cdi", "generate", "--host-root", &empty]);
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(text.contains("this host has no device for a CDI document:\n  amd "), "{text}");
    assert!(text.contains("nvidia  none: "), "{text}");
}

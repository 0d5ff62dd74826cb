//! Bad input and output: empty files, paths that are no regular files, a full standard output.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    process::{Command, Output, Stdio},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    cli::USAGE,
    program::{Node, OutputLines, folder, machine, run, text, windlass},
};

/// Runs a command with a text as its standard input.
fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut command = windlass(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("windlass runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("read");
    child.wait_with_output().expect("windlass ends")
}

/// Exit code and errors of a command whose standard output is full.
fn run_with_full_stdout(arguments: &[&str]) -> (Option<i32>, String) {
    let full_device = File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = windlass(arguments).stdout(full_device).output().expect("windlass runs");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn an_empty_configuration_is_refused_and_an_empty_mapping_is_accepted() {
    let folder = folder();
    let path = folder.path().join("w.yaml");
    let name = path.display().to_string();
    for content in ["", "\n\n", "# to be written\n", "---\n", "null\n"] {
        fs::write(&path, content).expect("written");
        let output = run(&["config", "check", &name]);
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), USAGE, "{content:?}: {stdout}");
        assert!(
            stdout.contains("says nothing: write `{}` for the defaults"),
            "{content:?}: {stdout}"
        );
        assert_eq!(run(&["node", "--config", &name]).status.code(), USAGE, "{content:?}");
    }
    for (content, warning) in
        [("{}\n", None), ("resources: []\n", Some("w.yaml:1: warning: no device is offered"))]
    {
        fs::write(&path, content).expect("written");
        let output = run(&["config", "check", &name]);
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{content:?}: {stdout}");
        assert_eq!(stdout.contains("warning"), warning.is_some(), "{content:?}: {stdout}");
        assert!(warning.is_none_or(|expected| stdout.contains(expected)), "{content:?}: {stdout}");
    }
}

#[test]
fn a_path_that_is_no_regular_file_is_refused_with_its_type() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    mknodat(CWD, path("pipe.yaml"), FileType::Fifo, Mode::RUSR, 0).expect("created");
    let large = File::create(path("large.yaml")).expect("created");
    large.set_len(1 << 30).expect("a sparse file");
    fs::create_dir(path("folder.yaml")).expect("created");
    for (file, expected) in [
        (path("pipe.yaml"), "it is a FIFO, not a regular file"),
        (path("folder.yaml"), "it is a folder, not a regular file"),
        ("/dev/zero".to_owned(), "it is a device, not a regular file"),
        (path("large.yaml"), "it is larger than 1 MiB"),
    ] {
        for command in [["config", "check"], ["config", "convert"]] {
            let output = run(&[&command[..], &[&file]].concat());
            assert_eq!(output.status.code(), USAGE, "{command:?} {file}");
            let stderr = text(&output.stderr);
            assert!(stderr.contains(&format!("{file}: {expected}")), "{stderr}");
        }
        let output = run(&["explain", "--machine", &file]);
        assert_eq!(output.status.code(), USAGE, "{file}: {}", text(&output.stderr));
    }
    let output = run(&["cdi", "check", &path("pipe.yaml")]);
    assert!(text(&output.stdout).contains("it is a FIFO, not a regular file"), "{output:?}");
}

#[test]
fn a_configuration_is_read_from_the_standard_input() {
    let output = run_with_input(&["config", "check", "-"], "mig: none\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "stdin: accepted, in Windlass's format\n");
    // Path that a shell passes for `<(...)`.
    for path in ["/dev/fd/0", "/proc/self/fd/0", "/dev/stdin"] {
        let output = run_with_input(&["config", "check", path], "mig: none\n");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("{path}: accepted, in Windlass's format\n"));
    }
    let output = run_with_input(&["config", "check", "-"], "\nmig: nonne\n");
    assert_eq!(output.status.code(), USAGE);
    let stdout = text(&output.stdout);
    assert_eq!(stdout, "stdin:2: \"nonne\" is not a known value: did you mean none?\n");
    let output = run_with_input(&["config", "convert", "-"], "version: v1\n");
    let expected = "# Converted from stdin, in the format of NVIDIA's device plugin.\n";
    assert!(text(&output.stdout).starts_with(expected), "{output:?}");
}

#[test]
fn an_unreadable_document_is_an_error_without_an_empty_table() {
    let folder = folder();
    let path = folder.path().join("bin.yaml");
    fs::write(&path, [0xff, 0xfe, 0x00]).expect("written");
    let output = run(&["cdi", "list", &path.display().to_string()]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(text(&output.stderr).contains("it is not UTF-8 text"), "{output:?}");
}

#[test]
fn a_host_without_devices_has_a_reason_for_each_source() {
    let folder = folder();
    let root = folder.path().display().to_string();
    let output = run(&["cdi", "generate", "--host-root", &root]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("this host has no device for a CDI document:\n  "), "{stderr}");
    assert!(stderr.contains("\n  nvme    none: "), "{stderr}");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["node", "--help"], &["--version"], &["config", "schema"]] {
        let (code, stderr) = run_with_full_stdout(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        let expected = "windlass: cannot write the answer to the standard output: No space left";
        assert!(stderr.starts_with(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_version_has_commit_target_and_features() {
    let version_text = text(&run(&["--version"]).stdout);
    let mut lines = version_text.lines();
    let version = concat!("windlass ", env!("CARGO_PKG_VERSION"));
    assert_eq!(lines.next(), Some(version));
    for key in ["commit:   ", "target:   ", "features: "] {
        let value = lines.next().and_then(|line| line.strip_prefix(key));
        assert!(value.is_some_and(|value| !value.is_empty()), "{version_text}");
    }
    assert_eq!(lines.next(), None, "{version_text}");
    assert_eq!(text(&run(&["-V"]).stdout).trim_end(), version);
}

#[test]
fn a_machine_is_replaced_only_with_force() {
    let folder = folder();
    let dir = folder.path().join("ü ñ's").display().to_string();
    let create = |flags: &[&str]| run(&[&["machine", "create", &dir], flags].concat());
    assert!(create(&["--machine", "t4-edge"]).status.success());
    let output = create(&["--machine", "dgx-a100"]);
    assert_eq!(output.status.code(), USAGE);
    assert!(text(&output.stderr).contains("has a simulated machine already: --force replaces it"));
    let output = create(&["--machine", "dgx-a100", "--force"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Printed commands work in a shell, even if the path has blanks and quotes.
    let stdout = text(&output.stdout);
    let commands: Vec<_> =
        stdout.lines().filter_map(|line| line.strip_prefix("  windlass devices ")).collect();
    assert_eq!(commands.len(), 2, "{stdout}");
    for arguments in commands {
        let program = env!("CARGO_BIN_EXE_windlass");
        let script = format!("exec \"$0\" devices {arguments}");
        let output = Command::new("sh").args(["-c", &script, program]).output().expect("sh runs");
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("SIMULATED machine dgx-a100"), "{output:?}");
    }
    assert!(stdout.contains("which only a running agent sees"), "{stdout}");
}

#[test]
fn an_unresponsive_gpu_is_omitted_and_the_exit_code_is_1() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let dir = folder.path().join("machine").display().to_string();
    let config = folder.path().join("w.yaml");
    fs::write(&config, "health: {callDeadline: 200ms}\n").expect("written");
    let config = config.display().to_string();
    assert!(run(&["machine", "fault", &dir, "hang@0"]).status.success());
    for command in
        [&["devices"][..], &["devices", "-o", "json"], &["topo"], &["topo", "-o", "json"]]
    {
        let mut command = windlass(command);
        let output = command.args(&host).args(["--config", &config]).output().expect("runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!output.stdout.is_empty(), "the other devices are printed");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("did not answer in time"), "{stderr}");
    }
}

#[test]
fn an_interrupted_demo_prints_one_line_and_exits_with_the_code_of_the_signal() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = windlass(&["demo"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        // Keep the reader: a demo whose standard output is closed ends.
        let mut lines = OutputLines::from_pipe(child.stdout.take());
        assert!(lines.any(|line| line.contains("Windlass demo")), "the demo has not begun");
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().expect("kill").success());
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        let result = (child.wait().expect("a child").code(), stderr);
        assert_eq!((Some(code), format!("windlass: interrupted by SIG{signal}\n")), result);
    }
}

#[test]
fn an_embedded_kubelet_keeps_running_after_its_input_ends() {
    let folder = folder();
    let dir = folder.path().join("kubelet").display().to_string();
    let mut child = windlass(&["kubelet", &dir]).stdout(Stdio::piped()).spawn().expect("runs");
    let mut lines = OutputLines::from_pipe(child.stdout.take());
    let is_reported = lines.any(|line| line.starts_with("stdin is closed: the kubelet runs until"));
    assert!(is_reported);
    let pid = child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().expect("kill runs").success());
    assert!(child.wait().expect("a child").success());
}

#[test]
fn help_is_at_most_100_columns_wide() {
    let help = text(&run(&["kubelet", "--help"]).stdout);
    assert!(help.contains("\nA folder of a real kubelet is refused."), "{help}");
    let long_line = help.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long_line, None);
}

#[test]
fn an_unused_kubeconfig_is_reported() {
    let folder = folder();
    let mut host = machine(&folder, "t4-edge");
    host.extend(["--kubeconfig".to_owned(), "/nope".to_owned()]);
    let mut node = Node::start(&folder, &host);
    let event =
        node.wait_for_message("kubeconfig not used: no configured feature uses the API server");
    assert_eq!((&event["level"], &event["path"]), (&"WARN".into(), &"/nope".into()));
}

//! `windlass machine`: the list of profiles, a machine with added devices, and faults.

use std::{fs, os::unix::process::ExitStatusExt as _, process::Stdio};

use crate::{
    cli::USAGE,
    program::{OutputLines, folder, run, text, windlass},
};

/// Number of the signal; signal(7).
const SIGABRT: i32 = 6;

#[test]
fn the_list_has_every_machine_and_every_device_that_can_be_added() {
    let output = run(&["machine", "list"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let devices = [" hailo,", " coral-usb,", " darwin3-network (demo only)"];
    for expected in ["dgx-h100 ", "mi300x-cpx ", "rdma ", "kria "].into_iter().chain(devices) {
        assert!(stdout.contains(expected), "{expected} is missing in\n{stdout}");
    }
}

#[test]
fn a_machine_without_nvidia_prints_its_commands_and_possible_faults() {
    let folder = folder();
    let dir = folder.path().join("m");
    let dir = dir.to_str().expect("text");
    let output = run(&["machine", "create", dir, "--machine", "rdma", "--device", "hailo:2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(!stdout.contains("--nvml-library"), "the machine has no NVML:\n{stdout}");
    assert!(stdout.contains(&format!("windlass machine fault {dir} unplug:hailo-0\n")), "{stdout}");

    let output = run(&["machine", "fault", dir, "vfs:ens1f1np1=2"]);
    assert_eq!(text(&output.stdout), format!("vfs:ens1f1np1=2 injected into {dir}\n"));
    let output = run(&["machine", "fault", dir, "unplug:halo"]);
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("`unplug:halo`: there is no device with that name; there are"),
        "{stderr}"
    );
    assert!(stderr.contains("ens1f0np0") && stderr.contains("hailo-1"), "{stderr}");
}

#[test]
fn printed_commands_serve_the_machine_to_an_embedded_kubelet() {
    let folder = folder();
    let dir = folder.path().join("m");
    let output = run(&["machine", "create", dir.to_str().expect("text"), "--machine", "t4-edge"]);
    let stdout = text(&output.stdout);
    let (_, commands) = stdout.split_once("in two terminals:\n").expect("a pair");
    let mut commands = commands.lines().map(|line| {
        line.strip_prefix("  windlass ").unwrap_or_else(|| panic!("no command: {line}"))
    });
    let mut start = || {
        let arguments: Vec<_> = commands.next().expect("a command").split(' ').collect();
        let mut command = windlass(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("windlass runs")
    };
    let (mut kubelet, mut agent) = (start(), start());
    let mut lines = OutputLines::from_pipe(kubelet.stdout.take());
    let is_listed = lines.any(|line| line == "+ nvidia.com/gpu lists 1 device, 1 healthy");
    for process in [&mut kubelet, &mut agent] {
        process.kill().expect("the process runs");
        process.wait().expect("a child");
    }
    assert!(is_listed, "{stdout}");
}

#[test]
fn a_driver_crash_ends_the_calling_process_only() {
    let folder = folder();
    let dir = folder.path().join("m");
    let dir = dir.to_str().expect("text");
    assert!(run(&["machine", "create", dir, "--machine", "dgx-h100"]).status.success());
    assert!(run(&["machine", "fault", dir, "crash@3"]).status.success());
    let (host, library) = (format!("{dir}/host"), format!("{dir}/libnvidia-ml.so.1"));
    let query = || run(&["devices", "--host-root", &host, "--nvml-library", &library]);
    assert_eq!(query().status.signal(), Some(SIGABRT));
    let second_output = query();
    assert!(second_output.status.success(), "{}", text(&second_output.stderr));
    assert!(text(&second_output.stdout).contains("GPU3"), "{}", text(&second_output.stdout));
}

#[test]
fn the_demo_runs_on_machines_without_devices_offered_by_default() {
    for (arguments, expected) in [
        (vec!["--machine", "rdma"], "x example.com/nic = "),
        (vec!["--machine", "mig-pcie"], "x nvidia.com/mig-1g.10gb = "),
        (vec!["--machine", "mig-pcie", "--dra"], "All 13 steps passed"),
    ] {
        let output = run(&[vec!["demo"], arguments.clone()].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
    }
}

#[test]
fn unknown_devices_and_faults_are_code_64_with_a_suggestion() {
    let folder = folder();
    let dir = folder.path().join("m");
    let dir = dir.to_str().expect("text");
    let config = folder.path().join("nothing.yaml");
    fs::write(&config, "exclude: [{kind: gpu}]\n").expect("written");
    for (arguments, expected) in [
        (
            vec!["machine", "create", dir, "--device", "halo"],
            "halo:1: there is no such device profile",
        ),
        (vec!["machine", "create", dir, "--device", "hailo:x"], "such as hailo:2"),
        (vec!["machine", "fault", dir, "unplugg:eth0"], "unplug:eth0"),
        (
            vec!["demo", "--machine", "t4-edge", "--config", config.to_str().expect("text")],
            "the agent offers no device of this machine by default",
        ),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), USAGE, "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert!(!folder.path().join("m").exists(), "a machine was created");
    }
}

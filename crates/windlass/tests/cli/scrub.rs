//! `windlass scrub`, on the command line and run by the agent before a container starts.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Child, ChildStdin, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cli::USAGE,
    program::{Node, OutputLines, folder, machine, run, text, windlass},
};

const MIB: u64 = 1 << 20;

/// Log message of a failed cleanup.
const WITHHELD: &str =
    "cleanup failed, device withheld: it is retried unless a pod holds the device";

/// Simulated machine, and the flags that select it.
struct Rig {
    folder: TempDir,
    host: Vec<String>,
}

/// Embedded kubelet, controlled through its standard input.
struct Kubelet {
    child: Child,
    stdin: ChildStdin,
    output: OutputLines,
}

// === impl Rig ===

impl Rig {
    fn new(profile: &str) -> Self {
        let folder = folder();
        let host = machine(&folder, profile);
        Self { folder, host }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn inject_fault(&self, fault: &str) {
        let dir = self.path("machine").display().to_string();
        let output = run(&["machine", "fault", &dir, fault]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// The first device of a kind.
    fn device(&self, kind: &str) -> String {
        let mut command = windlass(&["devices", "--kind", kind, "-o", "json"]);
        let output = command.args(&self.host).output().expect("windlass runs");
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["devices"][0]["id"].as_str().expect("a device").to_owned()
    }

    fn scrub(&self, arguments: &[&str]) -> Output {
        let mut command = windlass(&["scrub"]);
        command.args(arguments).args(&self.host).output().expect("windlass runs")
    }

    /// Zeroed bytes of a device, from the simulated driver.
    fn zeroed_bytes(&self, device: &str) -> Option<u64> {
        let report = fs::read_to_string(self.path("machine/cuda").join(device)).ok()?;
        Some(report.parse().expect("a number"))
    }

    /// Starts an agent that overwrites memory before a container starts, with this timeout.
    fn start_agent(&self, timeout: &str) -> Node {
        let config = self.path("windlass.yaml");
        let steps = format!("gpu: {{prepare: [{{memory: overwrite, timeout: {timeout}}}]}}\n");
        fs::write(&config, steps).expect("written");
        let config_flags = ["--config".to_owned(), config.display().to_string()];
        Node::start(&self.folder, &[&self.host[..], &config_flags].concat())
    }
}

// === impl Kubelet ===

impl Kubelet {
    fn start(rig: &Rig) -> Self {
        let mut command = windlass(&["kubelet", &rig.path("kubelet").display().to_string()]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("windlass runs");
        let stdin = child.stdin.take().expect("piped");
        let output = OutputLines::from_pipe(child.stdout.take());
        Self { child, stdin, output }
    }

    /// Runs a pod that requests the GPU, once the GPU is offered.
    fn run_pod(&mut self) {
        self.wait_for_line("1 healthy");
        writeln!(self.stdin, "run a nvidia.com/gpu=1").expect("written");
    }

    /// Reads until the kubelet prints a text. An error that it prints before fails the test.
    fn wait_for_line(&mut self, expected: &str) -> String {
        let [line] = self.wait_for_lines([expected]);
        line
    }

    /// Reads until the kubelet has printed all texts, in any order: the agent reports a device's health and answers for
    /// its container in two tasks.
    fn wait_for_lines<const N: usize>(&mut self, expected: [&str; N]) -> [String; N] {
        let mut found_lines = [const { None }; N];
        for line in self.output.by_ref() {
            let mut is_expected = false;
            for (found_line, text) in found_lines.iter_mut().zip(expected) {
                if line.contains(text) {
                    is_expected = true;
                    found_line.get_or_insert(line.clone());
                }
            }
            assert!(is_expected || !line.starts_with('!'), "{line}");
            if found_lines.iter().all(Option::is_some) {
                return found_lines.map(Option::unwrap_or_default);
            }
        }
        panic!("expected {expected:?}, found {found_lines:?}")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rig with its GPU, a kubelet, and an agent with this timeout for overwriting memory.
fn start_all(timeout: &str) -> (Rig, String, Kubelet, Node) {
    let rig = Rig::new("t4-edge");
    let gpu = rig.device("gpu");
    let kubelet = Kubelet::start(&rig);
    let agent = rig.start_agent(timeout);
    (rig, gpu, kubelet, agent)
}

/// True while a process overwrites memory of the rig's machine.
fn is_scrubbed(rig: &Rig) -> bool {
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let command_line =
        |process: PathBuf| text(&fs::read(process.join("cmdline")).unwrap_or_default());
    let machine = rig.host[1].as_str();
    { processes }
        .map(|process| command_line(process.path()))
        .any(|command_line| command_line.contains("\0scrub\0") && command_line.contains(machine))
}

#[test]
fn free_gpu_memory_is_overwritten_and_reported_as_table_and_json() {
    let rig = Rig::new("t4-edge");
    let gpu = rig.device("gpu");
    let output = rig.scrub(&[&gpu]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("SIMULATED machine t4-edge\n"), "{stdout}");
    assert!(stdout.contains("OVERWRITTEN") && stdout.contains(&gpu), "{stdout}");

    let output = rig.scrub(&[&gpu, "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let bytes = |name: &str| report[name].as_u64().expect(name);
    assert_eq!(
        (report["device"].as_str(), report["simulated"].as_str()),
        (Some(&*gpu), Some("t4-edge"))
    );
    assert_eq!(rig.zeroed_bytes(&gpu), Some(bytes("overwrittenBytes")));
    assert!(bytes("freeBytes") - bytes("overwrittenBytes") < 2 * MIB, "{report}");
    assert!(bytes("freeBytes") < bytes("totalBytes"), "{report}");
}

#[test]
fn the_memory_of_a_mig_device_is_overwritten_and_that_of_its_siblings_is_not() {
    let rig = Rig::new("mig-a100");
    let mig = rig.device("mig");
    let output = rig.scrub(&[&mig, "-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let files = fs::read_dir(rig.path("machine/cuda")).expect("written").flatten();
    let files: Vec<_> = files.map(|file| file.file_name()).collect();
    assert_eq!(files, [mig.as_str()]);
    assert!(rig.zeroed_bytes(&mig).is_some_and(|bytes| bytes > 1024 * MIB && bytes < 40_960 * MIB));
}

#[test]
fn memory_that_is_not_overwritten_is_an_error_with_the_reason() {
    let rig = Rig::new("t4-edge");
    let gpu = rig.device("gpu");
    let check_failure = |device: &str, expected: &str| {
        let output = rig.scrub(&[device]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains(device), "{stderr}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    };
    check_failure("GPU-00000000-0000-0000-0000-000000000000", "CUDA_ERROR_NO_DEVICE (100)");
    rig.inject_fault("cuda:stale@0");
    check_failure(&gpu, "memory reads back 0x5a after 0xa5 was written");
    rig.inject_fault("cuda:46@0");
    check_failure(&gpu, "CUDA_ERROR_DEVICE_UNAVAILABLE (46)");
    for invalid_id in ["0", "GPU-1", "MIG-GPU-00000000-0000-0000-0000-000000000000/1/0"] {
        let output = rig.scrub(&[invalid_id]);
        assert_eq!(output.status.code(), USAGE, "{invalid_id}");
        assert!(text(&output.stderr).contains("`windlass devices` shows it"));
    }
}

#[test]
fn a_gpu_is_overwritten_before_its_container_starts() {
    let (rig, gpu, mut kubelet, mut agent) = start_all("20s");
    kubelet.run_pod();
    agent.wait_for_message("memory overwritten");
    assert!(rig.zeroed_bytes(&gpu).is_some_and(|bytes| bytes > 1024 * MIB));
}

#[test]
fn a_gpu_that_cannot_be_overwritten_is_withheld_with_the_reason() {
    let (rig, gpu, mut kubelet, mut agent) = start_all("20s");
    rig.inject_fault("cuda:802@0");
    kubelet.run_pod();
    let [reason, _] = kubelet.wait_for_lines(["pod a does not start", "0 healthy"]);
    assert!(reason.contains("windlass scrub ended with exit status: 1"), "{reason}");
    assert!(reason.contains("CUDA_ERROR_SYSTEM_NOT_READY (802): the fabric manager"), "{reason}");
    let event = agent.wait_for_message(WITHHELD);
    assert!(event.to_string().contains("CUDA_ERROR_SYSTEM_NOT_READY"), "{event}");
    assert_eq!(rig.zeroed_bytes(&gpu), None);
}

#[test]
fn a_gpu_with_memory_in_use_does_not_count_as_overwritten() {
    let (rig, gpu, mut kubelet, _agent) = start_all("700ms");
    rig.inject_fault("memory:4096@0");
    kubelet.run_pod();
    let [reason, _] = kubelet.wait_for_lines(["pod a does not start", "0 healthy"]);
    assert!(
        reason.contains("4096 MiB of its memory are used, at most 128 are allowed"),
        "{reason}"
    );
    assert_eq!(rig.zeroed_bytes(&gpu), None);
}

#[test]
fn a_process_that_hangs_in_the_driver_is_killed_at_its_timeout() {
    let (rig, gpu, mut kubelet, _agent) = start_all("700ms");
    rig.inject_fault("cuda:hang@0");
    kubelet.run_pod();
    let reason = kubelet.wait_for_line("pod a does not start");
    assert!(reason.contains("memory: overwrite: not done within 700ms"), "{reason}");
    // The process ends some time after the signal.
    let deadline = Instant::now() + Duration::from_secs(3);
    while is_scrubbed(&rig) {
        assert!(Instant::now() < deadline, "the process still runs");
        std::thread::yield_now();
    }
    assert_eq!(rig.zeroed_bytes(&gpu), None);
}

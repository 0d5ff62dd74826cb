//! A simulated machine or this one, and the agent that serves it to the real kubelet.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
};

use tempfile::TempDir;
use windlass_machine::{Machine, MachineProfile, find_driver, profile::Driver};

/// A machine, and the agent's configuration. Drop removes their folder.
pub(crate) struct Node {
    folder: TempDir,
    /// Flags that select the machine.
    host: Vec<String>,
}

/// The agent; killed when dropped.
pub(crate) struct Agent(Child);

fn windlass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(arguments);
    command
}

fn succeed(arguments: &[&str]) {
    output_of(&mut windlass(arguments));
}

/// Output of a successful command.
fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("windlass runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

// === impl Node ===

impl Node {
    pub(crate) fn new(profile: &str, config: &str) -> Self {
        let mut node = Self::of_this_machine(config);
        succeed(&["machine", "create", &node.path("machine"), "--machine", profile]);
        node.set_host_flags(&node.machine());
        node
    }

    /// A simulated DGX H100 with another driver.
    pub(crate) fn with_driver(version: &str, config: &str) -> Self {
        let mut node = Self::of_this_machine(config);
        let mut profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        profile.driver = Some(Driver { version: version.to_owned(), cuda: "13.4".to_owned() });
        let driver = find_driver().expect("cargo builds it with the tests");
        let machine = Machine::create(Path::new(&node.path("machine")), &profile, &driver);
        node.set_host_flags(&machine.expect("a machine"));
        node
    }

    /// This machine, with nothing simulated.
    pub(crate) fn of_this_machine(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = Self { folder, host: Vec::new() };
        node.configure(config);
        node
    }

    /// The simulated machine.
    pub(crate) fn machine(&self) -> Machine {
        Machine::open(Path::new(&self.path("machine"))).expect("a machine")
    }

    fn set_host_flags(&mut self, machine: &Machine) {
        let text = |path: PathBuf| path.display().to_string();
        let (host, library) = (text(machine.host_root()), text(machine.nvml_library()));
        let flags = ["--host-root", &host, "--nvml-library", &library];
        self.host = flags.map(str::to_owned).to_vec();
    }

    /// Path in the node's temporary folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes the agent's configuration, which a running agent reloads.
    pub(crate) fn configure(&self, config: &str) {
        fs::write(self.path("windlass.yaml"), config).expect("written");
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    /// Content of a state file; empty if it is missing.
    pub(crate) fn state(&self, file: &str) -> String {
        fs::read_to_string(self.path(&format!("state/{file}"))).unwrap_or_default()
    }

    pub(crate) fn inject_fault(&self, fault: &str) {
        succeed(&["machine", "fault", &self.path("machine"), fault]);
    }

    /// Creates MIG instances on a GPU.
    pub(crate) fn create_mig(&self, gpu: &str, profiles: &[&str]) {
        let machine = self.path("machine");
        succeed(&[&["machine", "mig", &machine, gpu], profiles].concat());
    }

    /// Command of the program for this machine and its agent's state folder.
    fn command(&self, command: &str) -> Command {
        let mut program = windlass(&[command]);
        let config = ["--config", &self.path("windlass.yaml")];
        program.args(&self.host).args(config).args(["--state-dir", &self.path("state")]);
        program
    }

    /// JSON output of `windlass devices`.
    pub(crate) fn devices(&self) -> serde_json::Value {
        let text = output_of(self.command("devices").args(["-o", "json"]));
        serde_json::from_str(&text).expect("JSON")
    }

    pub(crate) fn start_agent(&self) -> Agent {
        let log = fs::File::options().create(true).append(true).open(self.path("log"));
        let mut command = self.command("node");
        if let [_, root, ..] = self.host.as_slice() {
            command.args(["--host-root-on-node", root]);
        }
        let child = command.stderr(log.expect("a log")).spawn();
        Agent(child.expect("windlass runs"))
    }
}

impl Drop for Node {
    #[expect(clippy::print_stderr, reason = "the agent's log explains a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("log"));
            eprintln!("the agent's log:\n{}", log.unwrap_or_default());
        }
        // Documents of this test's agent. A killed agent leaves them for its containers.
        for document in fs::read_dir("/var/run/cdi").into_iter().flatten().flatten() {
            if document.file_name().to_string_lossy().starts_with("windlass.dev-") {
                let _ = fs::remove_file(document.path());
            }
        }
    }
}

// === impl Agent ===

impl Agent {
    /// Kills the agent with SIGKILL: it does not clean up.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("the agent runs");
        self.0.wait().expect("the agent ends");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! Procfs and cgroups of a node with one container, whose first process waits for the hook.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;
use windlass_hook::{HookError, clear, limit};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) const BOOT_ID: &str = "6a1f0e3c-0000-4000-8000-000000000001";

pub(crate) const ID: &str = "0a1b2c";

pub(crate) const POD: &str = "kubepods.slice/pod1.slice";

/// First process of a container, which waits for the hook.
struct ContainerProcess(Child);

/// Files of a node with one container, and the machine of a test.
pub(crate) struct Node<M> {
    pub(crate) machine: M,
    container: ContainerProcess,
    folder: TempDir,
    /// Name of the agent's record.
    record: &'static str,
    /// Id of the container.
    pub(crate) id: String,
}

// === impl ContainerProcess ===

impl Drop for ContainerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Node ===

impl<M> Node<M> {
    /// Creates the node without a record. `machine` gets the node's folder.
    pub(crate) fn with_machine(record: &'static str, machine: impl FnOnce(&Path) -> M) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = machine(folder.path());
        let mut cat = Command::new("cat");
        let container = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let container = ContainerProcess(container.expect("cat runs"));
        let node = Self { machine, container, folder, record, id: ID.to_owned() };
        node.write("proc/sys/kernel/random/boot_id", format!("{BOOT_ID}\n"));
        node.write("proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.create_cgroup();
        node
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, content).expect("written");
    }

    /// Creates a cgroup for the container.
    pub(crate) fn create_cgroup(&self) {
        self.set_cgroup_lines(&format!("0::/{POD}/cri-{}.scope\n", self.id));
        let path = format!("cgroup/{POD}/cri-{}.scope/cgroup.controllers", self.id);
        self.write(&path, "cpu memory dmem\n");
    }

    /// Sets the lines of `/proc/PID/cgroup` for the container's process.
    pub(crate) fn set_cgroup_lines(&self, lines: &str) {
        self.write(&format!("proc/{}/cgroup", self.pid()), lines);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.container.0.id()
    }

    /// Writes the agent's record.
    pub(crate) fn write_record_file(&self, content: impl AsRef<[u8]>) {
        self.write(&format!("state/{}.json", self.record), content);
        fs::set_permissions(self.record_path(), fs::Permissions::from_mode(0o600)).expect("set");
    }

    pub(crate) fn record_path(&self) -> PathBuf {
        self.path(&format!("state/{}.json", self.record))
    }

    pub(crate) fn note_path(&self) -> PathBuf {
        self.path(&format!("state/{}.limited-{}.json", self.record, self.id))
    }

    /// OCI state as a runtime writes it.
    pub(crate) fn oci_state(&self) -> String {
        let (id, pid, bundle) = (&self.id, self.pid(), self.path("bundle"));
        format!(
            r#"{{"ociVersion":"1.2.0","id":"{id}","status":"creating","pid":{pid},"bundle":"{}","annotations":{{"gpu-memory":"1"}}}}"#,
            bundle.display()
        )
    }

    pub(crate) fn limit(&self) -> Result<PathBuf, HookError> {
        limit(&self.record_path(), 1, self.oci_state().as_bytes(), &self.path("proc"))
    }

    pub(crate) fn clear(&self) -> Result<(), HookError> {
        clear(&self.note_path(), &self.path("proc"))
    }

    /// Checks that the hook fails for this reason, and leaves no note.
    pub(crate) fn check_fails_without_note(&self, reason: &str) {
        let error = windlass_host::causes(&self.limit().expect_err(reason));
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(!self.note_path().is_file(), "{reason}");
    }

    /// Command of the program as a runtime starts it. Its environment has variables of a tenant, which it must ignore.
    pub(crate) fn hook(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass-hook"));
        command.args(["memory-limit"]).args(arguments).args(["--proc"]).arg(self.path("proc"));
        for name in ["NVIDIA_GPU_MEMORY_LIMIT", "GPU_MEMORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] {
            command.env(name, "99999");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program with the OCI state on standard input, as a runtime does.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut child = self.hook(arguments).spawn().expect("the hook starts");
        // A program that fails may end before it reads.
        let _ = child.stdin.take().expect("a pipe").write_all(self.oci_state().as_bytes());
        child.wait_with_output().expect("the hook ends")
    }
}

//! The hook against the kernel's controller for device memory, in a folder of plain files.
//!
//! Where the kernel answers a write at once, the files already have the answer: each cgroup has the controller, and
//! `dmem.max` has a line per region. A write replaces the content of a file.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;
use windlass_core::memory_limit::{MemoryLimitNote, MemoryLimitRecord};
use windlass_hook::{HookError, clear, limit};

const REGION: &str = "drm/0000:03:00.0/vram";

const GPU: &str = "amd-0000-03-00-0";

const BOOT_ID: &str = "6a1f0e3c-0000-4000-8000-000000000001";

const ID: &str = "0a1b2c";

/// Cgroups above the container's, from the root down.
const ABOVE: [&str; 3] = ["", "kubepods.slice", "kubepods.slice/pod1.slice"];

const MIB: u64 = 1 << 20;

/// Hard limit of the record.
const LIMIT: u64 = 4096 * MIB;

/// Container process that waits for its hook.
struct Waiting(Child);

/// Procfs and cgroups of a node with one container on a GPU of AMD's.
struct Node {
    container: Waiting,
    folder: TempDir,
}

/// File of the container's cgroup.
fn own_file(file: &str) -> String {
    format!("cgroup/{}/cri-{ID}.scope/{file}", ABOVE[2])
}

// === impl Waiting ===

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut cat = Command::new("cat");
        let container = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let node = Self { container: Waiting(container.expect("cat runs")), folder };
        node.write("proc/sys/kernel/random/boot_id", &format!("{BOOT_ID}\n"));
        node.write("proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.enter(&format!("0::/{}/cri-{ID}.scope\n", ABOVE[2]));
        for cgroup in ABOVE {
            node.write(&format!("cgroup/{cgroup}/cgroup.controllers"), "cpu memory dmem\n");
            node.write(&format!("cgroup/{cgroup}/cgroup.subtree_control"), "cpu memory\n");
        }
        node.write(&own_file("cgroup.controllers"), "cpu memory dmem\n");
        node.write(&own_file("dmem.max"), &format!("{REGION} max\ndrm/0000:04:00.0/vram max\n"));
        node.record(&format!(
            r#"{{"version":1,"cgroupRoot":"{}","gpus":[{{"uuid":"{GPU}","region":"{REGION}","hardMib":4096}}]}}"#,
            node.at("cgroup").display()
        ));
        node
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("it is there")
    }

    /// Gives the container's process these lines in procfs.
    fn enter(&self, lines: &str) {
        self.write(&format!("proc/{}/cgroup", self.container.0.id()), lines);
    }

    fn record_path(&self) -> PathBuf {
        self.at("state/amd.json")
    }

    fn record(&self, text: &str) {
        self.write("state/amd.json", text);
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.record_path(), mode).expect("set");
    }

    fn note_path(&self) -> PathBuf {
        self.at(&format!("state/amd.limited-{ID}.json"))
    }

    fn state(&self) -> String {
        let pid = self.container.0.id();
        format!(r#"{{"ociVersion":"1.2.0","id":"{ID}","status":"creating","pid":{pid}}}"#)
    }

    fn limit(&self) -> Result<PathBuf, HookError> {
        limit(&self.record_path(), 1, self.state().as_bytes(), &self.at("proc"))
    }

    /// Runs the program as a runtime does.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass-hook"));
        command.args(["memory-limit"]).args(arguments).arg("--proc").arg(self.at("proc"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        // A refused program may end before it reads.
        let _ = child.stdin.take().expect("a pipe").write_all(self.state().as_bytes());
        child.wait_with_output().expect("it ends")
    }

    /// Checks that the container is refused for this reason, without a limit and without a note.
    fn check_refused(&self, reason: &str) {
        let error = windlass_host::causes(&self.limit().expect_err(reason));
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains('\n'), "{error}");
        let limits = fs::read_to_string(self.at(&own_file("dmem.max"))).unwrap_or_default();
        assert!(!limits.contains(&LIMIT.to_string()), "{reason}: {limits}");
        assert!(!self.note_path().is_file(), "{reason}");
    }
}

#[test]
fn the_cgroup_of_the_container_is_limited_and_those_above_enable_the_controller() {
    let node = Node::new();
    assert_eq!(node.limit().expect("limited"), node.note_path());
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {LIMIT}\n"));
    for cgroup in ABOVE {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        assert_eq!(node.read(&path), "+dmem", "{cgroup}");
        assert!(!node.at(&format!("cgroup/{cgroup}/dmem.max")).exists(), "{cgroup}");
    }
    assert!(!node.at(&own_file("cgroup.subtree_control")).exists(), "it has no children");
    let left = MemoryLimitNote::parse(&fs::read(node.note_path()).expect("a note")).expect("good");
    assert_eq!((left.boot_id(), left.library()), (BOOT_ID, None));
    assert_eq!(left.cgroup(), node.at(&own_file("")).components().as_path());
    let gpu = &left.gpus()[0];
    assert_eq!((gpu.uuid.as_str(), gpu.hard_bytes), (GPU, LIMIT));
    assert_eq!(gpu.region.as_ref().expect("a region").as_str(), REGION);
}

#[test]
fn a_controller_that_is_enabled_already_is_not_enabled_again() {
    let node = Node::new();
    for cgroup in ABOVE {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        node.write(&path, "cpu memory dmem\n");
    }
    node.limit().expect("limited");
    node.limit().expect("again, as if the runtime tried twice");
    for cgroup in ABOVE {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        assert_eq!(node.read(&path), "cpu memory dmem\n", "{cgroup}");
    }
}

#[test]
fn the_program_multiplies_limits_and_lifts_those_of_a_note() {
    let node = Node::new();
    let record = node.record_path().into_os_string().into_string().expect("text");
    let output = node.run(&["--record", &record, "--replicas", "2"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {}\n", 2 * LIMIT));
    let left = node.note_path().into_os_string().into_string().expect("text");
    let output = node.run(&["--clear", &left]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} max\n"));
    assert!(node.run(&["--clear", &left]).status.success(), "again");
}

#[test]
fn a_kernel_without_the_controller_refuses_the_container() {
    let node = Node::new();
    for cgroup in ABOVE {
        let path = format!("cgroup/{cgroup}/cgroup.controllers");
        node.write(&path, "cpu memory\n");
        let folder = node.at("cgroup").join(cgroup);
        let reason = format!("{} has no dmem controller", folder.components().as_path().display());
        node.check_refused(&reason);
        node.write(&path, "dmem\n");
    }
    // A cgroup above does not pass it on, whatever was written there.
    node.write(&own_file("cgroup.controllers"), "cpu memory\n");
    node.check_refused(&format!("cri-{ID}.scope has no dmem controller"));
}

#[test]
fn a_cgroup_that_cannot_enable_the_controller_refuses_the_container() {
    let node = Node::new();
    let path = node.at("cgroup/kubepods.slice/cgroup.subtree_control");
    fs::remove_file(&path).expect("removed");
    node.check_refused("kubepods.slice/cgroup.subtree_control: No such file");
    assert!(!path.exists(), "the hook makes no file");
    fs::create_dir(&path).expect("made");
    node.check_refused("kubepods.slice/cgroup.subtree_control");
}

#[test]
fn a_region_that_the_kernel_does_not_know_refuses_the_container() {
    let node = Node::new();
    for text in ["", "drm/0000:04:00.0/vram max\n", "drm/0000:03:00.0/vram0 max\n"] {
        node.write(&own_file("dmem.max"), text);
        node.check_refused(&format!("dmem.max has no region {REGION}"));
        assert_eq!(node.read(&own_file("dmem.max")), text);
    }
    fs::remove_file(node.at(&own_file("dmem.max"))).expect("removed");
    node.check_refused("dmem.max: No such file");
}

#[test]
fn a_container_without_a_cgroup_of_version_2_of_its_own_is_refused() {
    let node = Node::new();
    for (lines, reason) in [
        ("4:memory:/kubepods/a\n", "no cgroup v2"),
        ("4:memory:/kubepods/a\n0::/\n", "mixes cgroup v1 and v2"),
        ("0::/\n", "root of all cgroups"),
        ("0::/kubepods.slice/../../a\n", "leads out"),
        ("0::/kubepods.slice/gone\n", "is no directory of cgroup v2"),
    ] {
        node.enter(lines);
        node.check_refused(reason);
        for cgroup in ABOVE {
            let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
            assert_eq!(node.read(&path), "cpu memory\n", "{reason}: nothing is touched");
        }
    }
}

#[test]
fn a_note_that_cannot_be_written_undoes_the_limit() {
    let node = Node::new();
    fs::create_dir_all(node.note_path().join("occupied")).expect("made");
    node.check_refused("cannot write");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} max\n"));
}

#[test]
fn a_note_of_a_removed_cgroup_or_region_needs_no_write() {
    let node = Node::new();
    node.limit().expect("limited");
    let clear = || clear(&node.note_path(), &node.at("proc"));
    node.write("proc/sys/kernel/random/boot_id", "another boot\n");
    clear().expect("nothing to do");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {LIMIT}\n"));
    node.write("proc/sys/kernel/random/boot_id", BOOT_ID);
    node.write(&own_file("dmem.max"), "drm/0000:04:00.0/vram max\n");
    clear().expect("the GPU is unplugged");
    fs::remove_file(node.at(&own_file("dmem.max"))).expect("removed");
    let error = clear().expect_err("the controller went").to_string();
    assert!(error.contains(GPU) && error.contains("dmem.max"), "{error}");
    fs::remove_dir_all(node.at(&own_file(""))).expect("removed");
    clear().expect("nothing to do");
}

#[test]
fn an_invalid_record_of_a_region_refuses_the_container() {
    let node = Node::new();
    let good = fs::read_to_string(node.record_path()).expect("a record");
    MemoryLimitRecord::parse(good.as_bytes()).expect("good");
    for (from, to, reason) in [
        ("vram", "vr am", "damaged"),
        ("4096", "0", "is 0 MiB"),
        (GPU, "a/b", "not the UUID of a whole GPU"),
        ("\"region\"", "\"soft\":1,\"region\"", "damaged"),
    ] {
        node.record(&good.replace(from, to));
        node.check_refused(reason);
    }
    assert!(Path::new(&node.record_path()).exists());
}

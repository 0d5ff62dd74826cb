//! Runs the hook against the kernel's controller for device memory, simulated by plain files in a folder.
//!
//! A kernel changes the content of files in response to a write. Here the files have that content from the start: each
//! cgroup has the controller, and `dmem.max` has a line per region. A write replaces the whole content of a file.

use std::fs;

use windlass_core::memory_limit::{MemoryLimitNote, MemoryLimitRecord};

use crate::node::{BOOT_ID, ID, MIB, POD};

const REGION: &str = "drm/0000:03:00.0/vram";

const GPU: &str = "amd-0000-03-00-0";

/// Ancestors of the container's cgroup, from the root down.
const ANCESTORS: [&str; 3] = ["", "kubepods.slice", POD];

/// Hard limit of the record, in bytes.
const LIMIT: u64 = 4096 * MIB;

/// Node with an AMD GPU, which has no simulated machine.
type Node = crate::node::Node<()>;

/// Relative path of a file of the container's cgroup.
fn own_file(file: &str) -> String {
    format!("cgroup/{POD}/cri-{ID}.scope/{file}")
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let node = Self::with_machine("amd", |_| ());
        for cgroup in ANCESTORS {
            node.write(&format!("cgroup/{cgroup}/cgroup.controllers"), "cpu memory dmem\n");
            node.write(&format!("cgroup/{cgroup}/cgroup.subtree_control"), "cpu memory\n");
        }
        node.write(&own_file("dmem.max"), format!("{REGION} max\ndrm/0000:04:00.0/vram max\n"));
        node.write_record_file(format!(
            r#"{{"version":1,"cgroupRoot":"{}","gpus":[{{"uuid":"{GPU}","region":"{REGION}","hardMib":4096}}]}}"#,
            node.path("cgroup").display()
        ));
        node
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("a file")
    }

    /// Checks that the hook fails for this reason, and leaves neither a limit nor a note.
    fn check_fails(&self, reason: &str) {
        self.check_fails_without_note(reason);
        let limits = fs::read_to_string(self.path(&own_file("dmem.max"))).unwrap_or_default();
        assert!(!limits.contains(&LIMIT.to_string()), "{reason}: {limits}");
    }
}

#[test]
fn the_containers_cgroup_is_limited_and_its_ancestors_enable_the_controller() {
    let node = Node::new();
    assert_eq!(node.limit().expect("limited"), node.note_path());
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {LIMIT}\n"));
    for cgroup in ANCESTORS {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        assert_eq!(node.read(&path), "+dmem", "{cgroup}");
        assert!(!node.path(&format!("cgroup/{cgroup}/dmem.max")).exists(), "{cgroup}");
    }
    assert!(!node.path(&own_file("cgroup.subtree_control")).exists(), "no children");
    let note = MemoryLimitNote::parse(&fs::read(node.note_path()).expect("a note")).expect("valid");
    assert_eq!((note.boot_id(), note.library()), (BOOT_ID, None));
    assert_eq!(note.cgroup(), node.path(&own_file("")).components().as_path());
    let gpu = &note.gpus()[0];
    assert_eq!((gpu.uuid.as_str(), gpu.hard_bytes), (GPU, LIMIT));
    assert_eq!(gpu.region.as_ref().expect("a region").as_str(), REGION);
}

#[test]
fn an_enabled_controller_is_not_enabled_again() {
    let node = Node::new();
    for cgroup in ANCESTORS {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        node.write(&path, "cpu memory dmem\n");
    }
    node.limit().expect("limited");
    node.limit().expect("limited again, as after a retry of the runtime");
    for cgroup in ANCESTORS {
        let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
        assert_eq!(node.read(&path), "cpu memory dmem\n", "{cgroup}");
    }
}

#[test]
fn the_program_multiplies_limits_and_lifts_them() {
    let node = Node::new();
    let record = node.record_path().into_os_string().into_string().expect("text");
    let output = node.run(&["--record", &record, "--replicas", "2"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {}\n", 2 * LIMIT));
    let note = node.note_path().into_os_string().into_string().expect("text");
    let output = node.run(&["--clear", &note]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} max\n"));
    assert!(node.run(&["--clear", &note]).status.success(), "cleared again");
}

#[test]
fn a_kernel_without_the_controller_fails_the_hook() {
    let node = Node::new();
    for cgroup in ANCESTORS {
        let path = format!("cgroup/{cgroup}/cgroup.controllers");
        node.write(&path, "cpu memory\n");
        let folder = node.path("cgroup").join(cgroup);
        let reason = format!("{} has no dmem controller", folder.components().as_path().display());
        node.check_fails(&reason);
        node.write(&path, "dmem\n");
    }
    // The ancestors enable the controller, but the container's cgroup does not get it.
    node.write(&own_file("cgroup.controllers"), "cpu memory\n");
    node.check_fails(&format!("cri-{ID}.scope has no dmem controller"));
}

#[test]
fn an_ancestor_that_cannot_enable_the_controller_fails_the_hook() {
    let node = Node::new();
    let path = node.path("cgroup/kubepods.slice/cgroup.subtree_control");
    fs::remove_file(&path).expect("removed");
    node.check_fails("kubepods.slice/cgroup.subtree_control: No such file");
    assert!(!path.exists(), "the hook creates no file");
    fs::create_dir(&path).expect("created");
    node.check_fails("kubepods.slice/cgroup.subtree_control");
}

#[test]
fn an_unknown_region_fails_the_hook() {
    let node = Node::new();
    for text in ["", "drm/0000:04:00.0/vram max\n", "drm/0000:03:00.0/vram0 max\n"] {
        node.write(&own_file("dmem.max"), text);
        node.check_fails(&format!("dmem.max has no region {REGION}"));
        assert_eq!(node.read(&own_file("dmem.max")), text);
    }
    fs::remove_file(node.path(&own_file("dmem.max"))).expect("removed");
    node.check_fails("dmem.max: No such file");
}

#[test]
fn a_container_without_its_own_cgroup_v2_fails_the_hook() {
    let node = Node::new();
    for (lines, reason) in [
        ("4:memory:/kubepods/a\n", "no cgroup v2"),
        ("4:memory:/kubepods/a\n0::/\n", "mixes cgroup v1 and v2"),
        ("0::/\n", "is in the root cgroup"),
        ("0::/kubepods.slice/../../a\n", "is outside the hook's view"),
        ("0::/kubepods.slice/gone\n", "is not a directory of cgroup v2"),
    ] {
        node.set_cgroup_lines(lines);
        node.check_fails(reason);
        for cgroup in ANCESTORS {
            let path = format!("cgroup/{cgroup}/cgroup.subtree_control");
            assert_eq!(node.read(&path), "cpu memory\n", "{reason}: unchanged");
        }
    }
}

#[test]
fn the_limit_is_lifted_if_the_note_cannot_be_written() {
    let node = Node::new();
    fs::create_dir_all(node.note_path().join("occupied")).expect("created");
    node.check_fails("cannot write");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} max\n"));
}

#[test]
fn clearing_writes_nothing_for_another_boot_or_a_removed_region_or_cgroup() {
    let node = Node::new();
    node.limit().expect("limited");
    node.write("proc/sys/kernel/random/boot_id", "another boot\n");
    node.clear().expect("nothing to do");
    assert_eq!(node.read(&own_file("dmem.max")), format!("{REGION} {LIMIT}\n"));
    node.write("proc/sys/kernel/random/boot_id", BOOT_ID);
    node.write(&own_file("dmem.max"), "drm/0000:04:00.0/vram max\n");
    node.clear().expect("an unplugged GPU");
    fs::remove_file(node.path(&own_file("dmem.max"))).expect("removed");
    let error = node.clear().expect_err("no controller").to_string();
    assert!(error.contains(GPU) && error.contains("dmem.max"), "{error}");
    fs::remove_dir_all(node.path(&own_file(""))).expect("removed");
    node.clear().expect("nothing to do");
}

#[test]
fn an_invalid_record_of_a_region_fails_the_hook() {
    let node = Node::new();
    let valid = fs::read_to_string(node.record_path()).expect("a record");
    MemoryLimitRecord::parse(valid.as_bytes()).expect("valid");
    for (from, to, reason) in [
        ("vram", "vr am", "damaged"),
        ("4096", "0", "is 0 MiB"),
        (GPU, "a/b", "not the UUID of a whole GPU"),
        ("\"region\"", "\"soft\":1,\"region\"", "damaged"),
    ] {
        node.write_record_file(valid.replace(from, to));
        node.check_fails(reason);
    }
    assert!(node.record_path().exists());
}

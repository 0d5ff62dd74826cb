//! Runs the hook against the simulated driver, for a process in a simulated tree of cgroups.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use windlass_core::memory_limit::{GpuMemoryLimit, MemoryLimitNote, MemoryLimitRecord};
use windlass_hook::{HookError, limit};
use windlass_machine::{Machine, MachineProfile, find_driver, profile::Driver};

use crate::node::{BOOT_ID, ID, MIB, POD};

/// Node with a simulated machine.
type Node = crate::node::Node<Machine>;

// === impl Node ===

impl Node {
    fn new() -> Self {
        Self::with_profile("l40s-pcie", "615.10")
    }

    fn with_profile(profile: &str, driver: &str) -> Self {
        let mut profile = MachineProfile::named(profile).expect("a shipped profile");
        profile.driver = Some(Driver { version: driver.to_owned(), cuda: "13.4".to_owned() });
        let driver = find_driver().expect("built with the tests");
        let node = Self::with_machine("share-1", |folder| {
            Machine::create(&folder.join("machine"), &profile, &driver).expect("a machine")
        });
        node.write("cgroup/system.slice/containerd.service/cgroup.controllers", "memory\n");
        node.write_record(&node.gpu_limits(&[4096, 1024]));
        node
    }

    fn uuid(&self, gpu: usize) -> String {
        self.machine.model().expect("a machine").gpus[gpu].uuid.clone()
    }

    /// Limits for the first GPUs, from their values in MiB.
    fn gpu_limits(&self, limits: &[u64]) -> Vec<GpuMemoryLimit> {
        let limits = limits.iter().enumerate();
        let limit =
            |(gpu, &hard_mib)| GpuMemoryLimit { uuid: self.uuid(gpu), region: None, hard_mib };
        limits.map(limit).collect()
    }

    /// Writes the agent's record.
    fn write_record(&self, gpus: &[GpuMemoryLimit]) {
        self.write_record_with(&self.machine.nvml_library(), gpus);
    }

    fn write_record_with(&self, library: &Path, gpus: &[GpuMemoryLimit]) {
        let record = MemoryLimitRecord::new(Some(library.into()), gpus.to_vec());
        let record = record.and_then(|record| record.with_cgroup_root(self.path("cgroup")));
        self.write_record_file(record.expect("valid").to_json());
    }

    fn cgroup(&self) -> PathBuf {
        self.path(&format!("cgroup/{POD}/cri-{}.scope", self.id))
    }

    fn inject(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect(fault)).expect(fault);
    }

    /// Hard limits in MiB, by index of the GPU and cgroup. Asserts that soft limits are 0.
    fn limits(&self) -> BTreeMap<(usize, PathBuf), u64> {
        let gpus = self.machine.model().expect("a machine").gpus;
        let mut hard_limits = BTreeMap::new();
        for (gpu, limits) in gpus.iter().enumerate().map(|(index, gpu)| (index, &gpu.memory_limits))
        {
            for (cgroup, limits) in limits.iter().filter(|(_, limits)| limits.hard != u64::MAX) {
                assert_eq!(
                    limits.soft, 0,
                    "the driver would propagate another soft limit to the ancestors of the cgroup"
                );
                hard_limits.insert((gpu, cgroup.into()), limits.hard / MIB);
            }
        }
        hard_limits
    }

    /// Checks that the hook fails for this reason, and leaves neither a limit nor a note.
    fn check_fails(&self, reason: &str) {
        self.check_fails_without_note(reason);
        assert_eq!(self.limits(), BTreeMap::new(), "{reason}");
    }
}

#[test]
fn replicas_multiply_the_limits_and_invalid_options_set_none() {
    let node = Node::new();
    let record = node.record_path().display().to_string();
    for options in
        [&["--replicas"][..], &["--replicas", "x"], &["--replicas", "0"], &["--copies", "2"]]
    {
        let output = node.run(&[&["--record", &record], options].concat());
        assert!(!output.status.success(), "{options:?}");
        assert_eq!(node.limits(), BTreeMap::new(), "{options:?}");
    }
    node.limit().expect("limited");
    let single_limits = node.limits();
    let output = node.run(&["--record", &record, "--replicas", "2"]);
    assert!(output.status.success(), "{output:?}");
    let doubled_limits = single_limits.into_iter().map(|(gpu, limit)| (gpu, limit * 2)).collect();
    assert_eq!(node.limits(), doubled_limits);
}

#[test]
fn the_note_contains_the_limit_of_each_gpu() {
    let node = Node::new();
    assert_eq!(node.limit().expect("limited"), node.note_path());
    let cgroup = node.cgroup();
    let expected = BTreeMap::from([((0, cgroup.clone()), 4096), ((1, cgroup.clone()), 1024)]);
    assert_eq!(node.limits(), expected);
    let note = MemoryLimitNote::parse(&fs::read(node.note_path()).expect("a note")).expect("valid");
    assert_eq!((note.boot_id(), note.cgroup()), (BOOT_ID, cgroup.as_path()));
    assert_eq!(note.library(), Some(&*node.machine.nvml_library()));
    let limits: Vec<_> = note.gpus().iter().map(|gpu| (gpu.uuid.clone(), gpu.hard_bytes)).collect();
    assert_eq!(limits, [(node.uuid(0), 4096 * MIB), (node.uuid(1), 1024 * MIB)]);
    let mode = fs::metadata(node.note_path()).expect("a note").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    node.limit().expect("limited again, as after a retry of the runtime");
    assert_eq!(node.limits(), expected);
}

#[test]
fn a_container_without_its_own_cgroup_fails_the_hook() {
    let node = Node::new();
    for (lines, reason) in [
        ("0::/\n", "is in the root cgroup"),
        ("4:memory:/kubepods/a\n", "no cgroup v2"),
        ("4:memory:/kubepods/a\n0::/\n", "mixes cgroup v1 and v2"),
        ("0::/../kubepods/a\n", "is outside the hook's view"),
        ("0::/kubepods/../../a\n", "is outside the hook's view"),
        ("0::/system.slice/containerd.service\n", "contains the hook"),
        ("0::/kubepods.slice/gone\n", "gone is not a directory of cgroup v2"),
        ("0::/kubepods.slice/pod1.slice\n", "is not a directory of cgroup v2"),
        ("0::/kubepods.slice/a (deleted)\n", "is not a directory of cgroup v2"),
    ] {
        node.set_cgroup_lines(lines);
        node.check_fails(reason);
    }
    fs::remove_dir_all(node.path(&format!("proc/{}", node.pid()))).expect("removed");
    node.check_fails("cannot read");
}

#[test]
fn an_invalid_record_fails_the_hook() {
    let node = Node::new();
    let path = node.record_path();
    let valid = fs::read_to_string(&path).expect("a record");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).expect("set");
    node.check_fails("can be written by others");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    for (from, to, reason) in [
        (valid.as_str(), "", "damaged"),
        ("4096", "0", "is 0 MiB"),
        ("\"hardMib\":4096", "\"softMib\":4096", "damaged"),
        (",\"hardMib\":4096", "", "damaged"),
        ("GPU-", "MIG-", "not the UUID of a whole GPU"),
    ] {
        fs::write(&path, valid.replace(from, to)).expect("written");
        node.check_fails(reason);
    }
    fs::write(&path, " ".repeat(65 << 10)).expect("written");
    node.check_fails("larger than");
    fs::rename(&path, node.path("state/moved")).expect("moved");
    symlink("moved", &path).expect("linked");
    node.check_fails("cannot read");
    fs::remove_file(&path).expect("removed");
    node.check_fails("share-1.json: No such file");
}

#[test]
fn an_invalid_state_fails_the_hook() {
    let node = Node::new();
    for (from, to) in
        [("creating", "running"), ("\"pid\"", "\"pod\""), ("{", ""), (ID, "../escaped"), (ID, "")]
    {
        let state = node.oci_state().replace(from, to);
        let error = limit(&node.record_path(), 1, state.as_bytes(), &node.path("proc"));
        assert!(matches!(error, Err(HookError::InvalidState(_))), "{from} -> {to}: {error:?}");
    }
    assert_eq!(node.limits(), BTreeMap::new());
}

#[test]
fn a_driver_or_gpu_without_memory_limits_fails_the_hook() {
    let node = Node::new();
    node.write_record_with(&node.path("gone/libnvidia-ml.so.1"), &node.gpu_limits(&[1]));
    node.check_fails("cannot load");
    node.write_record(&[GpuMemoryLimit { uuid: "GPU-gone".to_owned(), region: None, hard_mib: 1 }]);
    node.check_fails("GPU-gone cannot be used");
    node.write_record(&node.gpu_limits(&[4096, 1024]));
    node.inject("lost@1");
    node.check_fails(&format!("{} cannot be used", node.uuid(1)));
    node.inject("recover@1");
    node.machine.remove_driver().expect("removed");
    node.check_fails("cannot load");
    Node::with_profile("l40s-pcie", "614.99").check_fails("no function that limits memory");
    Node::with_profile("mig-a100", "615.10").check_fails("is in MIG mode");
}

#[test]
fn a_mismatch_at_read_back_fails_the_hook() {
    let node = Node::new();
    node.inject("limit:ignored@0");
    let (uuid, requested) = (node.uuid(0), 4096 * MIB);
    node.check_fails(&format!(
        "{uuid}: set a limit of {requested} bytes, the driver reads back no limit"
    ));
}

#[test]
fn limits_are_lifted_after_a_failure() {
    // 17 is `NVML_ERROR_OPERATING_SYSTEM`.
    for fault in ["limit:ignored@1", "limit:17@1"] {
        let node = Node::new();
        node.inject(fault);
        node.check_fails(&node.uuid(1));
    }
    // On the second GPU the call that lifts the limit fails too.
    let node = Node::new();
    node.inject("limit:17@1");
    let error = node.limit().expect_err("a fault").to_string();
    assert!(error.contains("the operating system"), "{error}");
    assert!(error.contains(&format!("the limits of {} may remain", node.uuid(1))), "{error}");
}

#[test]
fn limits_are_lifted_if_the_note_cannot_be_written() {
    let node = Node::new();
    fs::create_dir_all(node.note_path().join("occupied")).expect("created");
    node.check_fails("cannot write");
}

#[test]
fn clearing_lifts_limits_while_the_cgroup_exists() {
    let node = Node::new();
    node.limit().expect("limited");
    node.write("proc/sys/kernel/random/boot_id", "another boot\n");
    node.clear().expect("nothing to do");
    assert_eq!(node.limits().len(), 2, "the note is of another boot");
    node.write("proc/sys/kernel/random/boot_id", BOOT_ID);
    node.inject("limit:17@1");
    let error = node.clear().expect_err("the second GPU fails").to_string();
    assert!(error.contains(&node.uuid(1)) && !error.contains(&node.uuid(0)), "{error}");
    assert_eq!(node.limits().len(), 1, "the limit of the first GPU is lifted");
    node.inject("recover@1");
    node.clear().expect("cleared");
    assert_eq!(node.limits(), BTreeMap::new());
    node.clear().expect("cleared again");
    node.inject("remove@1");
    node.clear().expect("a removed GPU has no limits");
    fs::remove_dir_all(node.cgroup()).expect("removed");
    node.machine.remove_driver().expect("removed");
    node.clear().expect("nothing to do, so no driver is needed");
    fs::remove_file(node.note_path()).expect("removed");
    node.clear().expect_err("no note");
}

#[test]
fn stale_notes_are_removed() {
    let node = Node::new();
    let path_of = |id: &str| node.path(&format!("state/share-1.limited-{id}.json"));
    node.limit().expect("limited");
    let text = fs::read_to_string(node.note_path()).expect("a note");
    let stale = [
        ("gone", text.replace(&format!("cri-{ID}"), "cri-gone")),
        ("earlier-boot", text.replace(BOOT_ID, "another")),
    ];
    let current = [("alive", text.clone()), ("damaged", "{".to_owned())];
    for (id, text) in stale.iter().chain(&current) {
        node.write(&format!("state/share-1.limited-{id}.json"), text);
    }
    fs::write(node.path("state/share-2.limited-gone.json"), &stale[0].1).expect("written");
    node.limit().expect("limited");
    let exist = |ids: [&str; 2]| ids.map(|id| path_of(id).exists());
    assert_eq!(exist(["gone", "earlier-boot"]), [false, false]);
    assert_eq!(exist(["alive", "damaged"]), [true, true]);
    assert!(node.path("state/share-2.limited-gone.json").exists(), "a note of another record");
    assert!(node.record_path().exists() && node.note_path().exists());
}

#[test]
fn the_program_reads_limits_only_from_the_record() {
    let node = Node::new();
    let environment = r#"{"process":{"env":["NVIDIA_GPU_MEMORY_LIMIT=99999"]}}"#;
    node.write("bundle/config.json", environment);
    let record = node.record_path().into_os_string().into_string().expect("text");
    let output = node.run(&["--record", &record]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let expected = [4096, 1024];
    assert_eq!(node.limits().into_values().collect::<Vec<_>>(), expected);
    let note = node.note_path().into_os_string().into_string().expect("text");
    assert!(node.run(&["--clear", &note]).status.success());
    assert_eq!(node.limits(), BTreeMap::new());
}

#[test]
fn the_program_fails_with_one_line_and_an_exit_code() {
    let node = Node::new();
    node.inject("limit:ignored@0");
    let record = node.record_path().into_os_string().into_string().expect("text");
    for (arguments, code, reason) in [
        (&["--record", &record][..], 1, node.uuid(0)),
        (&["--record", "/gone"], 1, "cannot read /gone".to_owned()),
        (&["--clear", "/gone"], 1, "cannot read /gone".to_owned()),
        (&["--record"], 64, "--help".to_owned()),
        (&["--gpu", "all"], 64, "--help".to_owned()),
        (&[], 64, "--help".to_owned()),
    ] {
        let output = node.run(arguments);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("windlass-hook: ") && stderr.contains(&reason), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_windlass-hook")).arg("--help").output();
    let help = help.expect("the hook starts");
    assert!(help.status.success() && help.stdout.starts_with(b"Limits the GPU memory"));
}

/// Environment variable with the number of containers in the next test: 10,000 take minutes.
const CONTAINERS_VARIABLE: &str = "WINDLASS_HOOK_CONTAINERS";

/// Runs containers one after another. For some the driver rejects the limit, and for some the hook is killed at an
/// arbitrary instruction.
#[test]
fn no_limit_remains_after_failed_and_killed_hooks() {
    let containers =
        env::var(CONTAINERS_VARIABLE).map_or(60, |count| count.parse().expect(CONTAINERS_VARIABLE));
    let mut node = Node::new();
    let record = node.record_path().display().to_string();
    let mut limited = 0;
    for number in 0..containers {
        node.id = format!("container{number}");
        node.create_cgroup();
        match number % 4 {
            0 => {
                node.inject(&format!("limit:17@{}", number / 4 % 2));
                node.limit().expect_err("the driver rejects the limit");
                assert!(node.limits().keys().all(|(_, cgroup)| *cgroup != node.cgroup()));
                node.inject("recover@0");
                node.inject("recover@1");
            }
            1 => {
                let mut hook = node.hook(&["--record", &record]).spawn().expect("the hook starts");
                let _ = hook.stdin.take().expect("a pipe").write_all(node.oci_state().as_bytes());
                // The delay grows from container to container, so that later hooks end before the kill.
                (0..number % 400 * 20).for_each(|_| std::thread::yield_now());
                let _ = hook.kill();
                hook.wait().expect("the hook ends");
            }
            _ => {
                node.limit().expect("limited");
                let own_cgroup = node.cgroup();
                let limits = node.limits().into_keys().filter(|(_, cgroup)| *cgroup == own_cgroup);
                assert_eq!(limits.count(), 2, "container {number}");
                limited += 1;
            }
        }
        // The runtime removes the cgroup, and with it the driver's limits for it.
        fs::remove_dir_all(node.cgroup()).expect("removed");
    }
    assert!(limited >= containers / 2);
    node.id = "last".to_owned();
    node.create_cgroup();
    let note = node.limit().expect("the next container is limited");
    let last_cgroup = node.cgroup();
    let expected = BTreeMap::from([((0, last_cgroup.clone()), 4096), ((1, last_cgroup), 1024)]);
    assert_eq!(node.limits(), expected, "limits of the last container only");
    let notes = fs::read_dir(node.path("state")).expect("a folder").flatten();
    let notes = notes.map(|entry| entry.path()).filter(|path| *path != node.record_path());
    let is_finished = |path: &PathBuf| !path.to_string_lossy().ends_with(".draft");
    assert_eq!(notes.filter(is_finished).collect::<Vec<_>>(), [note]);
}

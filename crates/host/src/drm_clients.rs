//! GPU memory of the processes of pods under DRM drivers, from `/proc/PID/fdinfo`.
//!
//! A driver describes each open file of a GPU (`Documentation/gpu/drm-usage-stats.rst`):
//!
//! ```text
//! drm-driver:         amdgpu
//! drm-client-id:      42
//! drm-pdev:           0000:03:00.0
//! drm-resident-vram:  1048576 KiB
//! ```
//!
//! Several open files, even of several processes, may belong to one client. A client counts once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
};

use windlass_core::pci::PciAddress;

use crate::{
    Host, causes,
    container::{ContainerId, GpuProcess},
};

/// Snapshot of the processes of some pods, with their GPU memory.
#[derive(Debug, Default)]
pub struct DrmProcesses {
    processes: BTreeMap<PciAddress, Vec<GpuProcess>>,
    /// GPUs whose driver does not report the memory of a client.
    unmeasured: BTreeSet<PciAddress>,
    /// Pods with a process whose files cannot be read, by the kubelet's UID, with the reason.
    unreadable_pods: BTreeMap<String, String>,
    /// Clients that are counted already, by GPU and client id.
    counted: BTreeSet<(PciAddress, u64)>,
    /// All pods with a process, by the kubelet's UID.
    pods_with_processes: BTreeSet<String>,
}

/// Reason why the clients of DRM drivers are unknown.
#[derive(Debug, thiserror::Error)]
pub enum DrmError {
    /// The agent does not see the host's processes.
    #[error(
        "the host's processes are hidden: the agent's pod needs hostPID, and the host's /proc below its root"
    )]
    Hidden,
    /// The kernel does not show the open files of a process.
    #[error(
        "the open files of process {pid} are hidden: the agent needs the capability SYS_PTRACE"
    )]
    HiddenFiles {
        /// Process id on the host.
        pid: u32,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The host has more entries than the agent reads.
    #[error("there are too many {0}: {MAX_ENTRIES} are read at most")]
    TooMany(String),
    /// The GPU's driver does not report the memory of a client.
    #[error("the driver does not report how much memory a process uses")]
    Unmeasured,
}

/// A client of a GPU's driver, by one of its open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrmClient {
    gpu: PciAddress,
    /// Client id, unique on the GPU; `None` if the driver does not distinguish clients.
    id: Option<u64>,
    /// GPU memory of the client in bytes; `None` if the driver does not report it.
    memory_bytes: Option<u64>,
}

/// Prefixes of keys with a region's memory, best first: resident memory, its older name, and all requested memory.
const MEMORY: [&str; 3] = ["drm-resident-", "drm-memory-", "drm-total-"];

/// Prefixes of the names of regions in a GPU's own memory: `vram` of amdgpu, `vram0` of xe, `local0` of i915.
const OWN_MEMORY: [&str; 2] = ["vram", "local"];

/// Limit on the bytes of a description. The driver's part has about two thousand. Before it, the kernel writes a line
/// for each lock of the file, and a program may have thousands of locks.
const MAX_BYTES: u64 = 1 << 20;

/// Prefix of a driver's keys.
const KEY: &[u8] = b"drm-";

/// Limit on the processes of a host, and on the open files of a process. Folders list at most 20,001 entries.
const MAX_ENTRIES: usize = 20_000;

// === impl DrmProcesses ===

impl DrmProcesses {
    /// Reads the open files of all processes of these pods, by the kubelet's UID. Blocks for `/proc`.
    ///
    /// # Errors
    ///
    /// Fails if the host hides processes, or has too many.
    pub fn read(host: &Host, pods: &BTreeSet<String>) -> Result<Self, DrmError> {
        if !host.shows_own_process() {
            return Err(DrmError::Hidden);
        }
        let names = host.try_entry_names("/proc", MAX_ENTRIES + 1).map_err(|_| DrmError::Hidden)?;
        if names.len() > MAX_ENTRIES {
            return Err(DrmError::TooMany("processes".to_owned()));
        }
        let mut processes: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        processes.sort_unstable();
        let mut snapshot = Self::default();
        for pid in processes {
            let container = none_if_gone(host.container_of(pid)).map_err(|_| DrmError::Hidden)?;
            let Some(container) = container.flatten() else { continue };
            if pods.contains(&container.pod)
                && let Err(error) = snapshot.add(host, pid, &container)
            {
                // The error of one pod must not hide other pods.
                snapshot.unreadable_pods.insert(container.pod.clone(), causes(&error));
            }
            snapshot.pods_with_processes.insert(container.pod);
        }
        Ok(snapshot)
    }

    /// Pods with a process whose files cannot be read, by the kubelet's UID, with the reason. Such a pod may use more
    /// memory than is found.
    pub fn unreadable_pods(&self) -> &BTreeMap<String, String> {
        &self.unreadable_pods
    }

    /// All pods with a process, by the kubelet's UID, including those whose files were not read.
    pub fn pods_with_processes(&self) -> &BTreeSet<String> {
        &self.pods_with_processes
    }

    /// Processes on a GPU.
    ///
    /// # Errors
    ///
    /// Fails if the GPU's driver does not report the memory of a client.
    pub fn on_gpu(&self, gpu: PciAddress) -> Result<Vec<GpuProcess>, DrmError> {
        if self.unmeasured.contains(&gpu) {
            return Err(DrmError::Unmeasured);
        }
        Ok(self.processes.get(&gpu).cloned().unwrap_or_default())
    }

    /// Adds the clients of a process, except those that were counted for another process.
    fn add(&mut self, host: &Host, pid: u32, container: &ContainerId) -> Result<(), DrmError> {
        let hidden_files = |source| DrmError::HiddenFiles { pid, source };
        let files = open_files(host, pid).map_err(hidden_files)?;
        if files.len() > MAX_ENTRIES {
            return Err(DrmError::TooMany(format!("open files of process {pid}")));
        }
        let mut per_gpu = BTreeMap::new();
        for file in files {
            let text = none_if_gone(File::open(host.path(file)).and_then(description))
                .map_err(hidden_files)?;
            let Some(client) = text.as_deref().and_then(DrmClient::parse) else { continue };
            let Some((id, bytes)) = client.id.zip(client.memory_bytes) else {
                self.unmeasured.insert(client.gpu);
                continue;
            };
            if self.counted.insert((client.gpu, id)) {
                let sum = per_gpu.entry(client.gpu).or_insert(0_u64);
                *sum = sum.saturating_add(bytes);
            }
        }
        for (gpu, memory_bytes) in per_gpu {
            let process = GpuProcess {
                pid,
                container: container.clone(),
                memory_bytes,
                compute_percent: None,
            };
            self.processes.entry(gpu).or_default().push(process);
        }
        Ok(())
    }
}

// === impl DrmClient ===

impl DrmClient {
    /// Parses a file of `fdinfo`; `None` if the open file is not that of a GPU.
    fn parse(text: &str) -> Option<Self> {
        let keys = || text.lines().filter_map(|line| line.split_once(':'));
        let value = |name| keys().find(|(key, _)| *key == name).map(|(_, value)| value.trim());
        let gpu = value("drm-pdev")?.parse().ok()?;
        let id = value("drm-client-id").and_then(|id| id.parse().ok());
        let memory_bytes = MEMORY.iter().find_map(|prefix| {
            let regions =
                keys().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
            let mut own_regions =
                regions.filter(|(region, _)| OWN_MEMORY.iter().any(|own| region.starts_with(own)));
            let (_, amount) = own_regions.next()?;
            // One unreadable value makes the sum unknown.
            let others = own_regions.map(|(_, amount)| bytes(amount));
            Some(others.fold(bytes(amount), |sum, next| sum?.checked_add(next?)))
        });
        Some(Self { gpu, id, memory_bytes: memory_bytes.flatten() })
    }
}

/// Paths of the descriptions of a process's open files. If the main thread has ended, only the folders of the other
/// threads have them.
fn open_files(host: &Host, pid: u32) -> io::Result<Vec<String>> {
    let entry_paths = |folder: String| -> io::Result<Vec<String>> {
        let names =
            none_if_gone(host.try_entry_names(&folder, MAX_ENTRIES + 1))?.unwrap_or_default();
        Ok(names.into_iter().map(|name| format!("{folder}/{name}")).collect())
    };
    let files = entry_paths(format!("/proc/{pid}/fdinfo"))?;
    if !files.is_empty() {
        return Ok(files);
    }
    let mut thread_files = Vec::new();
    for thread in entry_paths(format!("/proc/{pid}/task"))? {
        if thread_files.len() <= MAX_ENTRIES {
            thread_files.extend(entry_paths(format!("{thread}/fdinfo"))?);
        }
    }
    Ok(thread_files)
}

/// Parses an amount in bytes, `KiB` or `MiB`.
fn bytes(value: &str) -> Option<u64> {
    let mut words = value.split_ascii_whitespace();
    let amount: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some(_) => return None,
    };
    amount.checked_mul(unit).filter(|_| words.next().is_none())
}

/// The result of a read; `None` if the process has ended or the file was closed meanwhile.
fn none_if_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True for the errors of `/proc` after the end of a process (`proc(5)`).
fn is_gone(error: &io::Error) -> bool {
    let has_ended = error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error());
    has_ended || error.kind() == io::ErrorKind::NotFound
}

/// Lines of a description that the driver wrote. They follow the lines of the kernel, so the file is read to its end.
fn description(file: File) -> io::Result<String> {
    let mut content = Vec::new();
    if file.take(MAX_BYTES + 1).read_to_end(&mut content)? as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("its description has more than {MAX_BYTES} bytes")));
    }
    let lines = content.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(KEY));
    // A driver writes ASCII.
    Ok(lines.map(String::from_utf8_lossy).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const UID: &str = "8ab2c0de-1234-4f6a-9c1d-0123456789ab";

    /// A host's `/proc`, which shows this process.
    struct Proc {
        root: TempDir,
        host: Host,
    }

    fn gpu(address: &str) -> PciAddress {
        address.parse().expect("an address")
    }

    fn client(pdev: &str, id: u64, memory: &str) -> String {
        format!(
            "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t{id}\ndrm-pdev:\t{pdev}\n{memory}\n"
        )
    }

    // === impl Proc ===

    impl Proc {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a temporary folder");
            let host = Host::new(root.path(), "/");
            let proc = Self { root, host };
            let own = fs::read_to_string("/proc/self/stat").expect("readable");
            proc.write(&format!("{}/stat", std::process::id()), &own);
            proc.write(&format!("{}/cgroup", std::process::id()), "0::/system.slice/agent");
            proc
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join("proc").join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }

        /// A process of a container with these files of `fdinfo`.
        fn process(&self, pid: u32, container: &str, files: &[String]) {
            self.write(&format!("{pid}/cgroup"), &format!("0::/kubepods/pod{UID}/{container}"));
            for (number, text) in files.iter().enumerate() {
                self.write(&format!("{pid}/fdinfo/{number}"), text);
            }
        }

        fn read(&self) -> Result<DrmProcesses, DrmError> {
            DrmProcesses::read(&self.host, &[UID.to_owned()].into())
        }

        /// Process id, container and KiB of each process on a GPU.
        fn used(&self, address: &str) -> Vec<(u32, String, u64)> {
            let processes = self.read().expect("read").on_gpu(gpu(address));
            let processes = processes.expect("measured").into_iter();
            processes
                .map(|process| (process.pid, process.container.id, process.memory_bytes >> 10))
                .collect()
        }
    }

    #[test]
    fn every_key_of_memory_is_read_and_the_best_counts() {
        for (memory, expected) in [
            ("drm-resident-vram0:\t2048 KiB", Some(2 << 20)),
            ("drm-total-vram:\t9 MiB\ndrm-memory-vram:\t3 MiB", Some(3 << 20)),
            ("drm-total-vram0: 9 MiB\ndrm-resident-vram0: 0\ndrm-resident-gtt: 7 MiB", Some(0)),
            ("drm-resident-vram0: 1 MiB\ndrm-resident-vram1: 2 MiB", Some(3 << 20)),
            ("drm-total-local0:\t4096", Some(4096)),
            ("drm-resident-system0: 8 MiB", None),
            ("drm-resident-vram: many", None),
            ("drm-resident-vram: 1 GiB", None),
            ("drm-resident-vram: 1 MiB more", None),
            ("drm-resident-vram: 18446744073709551615 MiB", None),
            ("drm-resident-vram0: 1 MiB\ndrm-resident-vram1: x", None),
            ("drm-resident-vram0: 1\ndrm-resident-vram1: 18446744073709551615", None),
            ("", None),
        ] {
            let parsed = DrmClient::parse(&client("0000:03:00.0", 7, memory)).expect(memory);
            assert_eq!((parsed.id, parsed.memory_bytes), (Some(7), expected), "{memory}");
        }
    }

    #[test]
    fn a_file_without_a_client_is_skipped() {
        for text in [
            "",
            "pos:\t0\ninotify wd:1 ino:2",
            "drm-pdev:\tnowhere\ndrm-client-id:\t1",
            "drm-client-id:\t1\ndrm-resident-vram:\t1 MiB",
            "\u{fffd}",
        ] {
            assert_eq!(DrmClient::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn each_client_counts_once_for_its_first_process() {
        let proc = Proc::new();
        let client_with = |id, memory| client("0000:03:00.0", id, memory);
        let (one, two) = (
            client_with(1, "drm-resident-vram: 100 KiB"),
            client_with(2, "drm-resident-vram: 7 KiB"),
        );
        // The same number on another GPU is another client.
        let other = client("0000:0a:00.0", 1, "drm-resident-vram: 5 KiB");
        proc.process(900, "a", &[one.clone(), one.clone(), two.clone(), other]);
        proc.process(
            1000,
            "b",
            &[two, client_with(3, "drm-resident-vram: 1 MiB"), "pos: 0".to_owned()],
        );
        proc.process(99, "c", std::slice::from_ref(&one));
        let expected =
            [(99, "c".to_owned(), 100), (900, "a".to_owned(), 7), (1000, "b".to_owned(), 1024)];
        assert_eq!(proc.used("0000:03:00.0"), expected);
        assert_eq!(proc.used("0000:0a:00.0"), [(900, "a".to_owned(), 5)]);
        assert_eq!(proc.used("0000:0b:00.0"), []);
    }

    #[test]
    fn host_processes_other_pods_and_ended_processes_do_not_count() {
        let proc = Proc::new();
        let file = client("0000:03:00.0", 1, "drm-resident-vram: 1 MiB");
        proc.write("20/cgroup", "0::/system.slice/gdm.service");
        proc.write("20/fdinfo/3", &file);
        proc.write("24/cgroup", &format!("0::/kubepods/pod{}/a", "f".repeat(32)));
        proc.write("24/fdinfo/3", &file);
        // The first has ended before its group was read, and the second before its files were.
        fs::create_dir_all(proc.root.path().join("proc/21")).expect("made");
        proc.process(22, "a", &[]);
        assert_eq!(proc.used("0000:03:00.0"), []);
        // A file closed between the listing and the read.
        proc.process(23, "a", std::slice::from_ref(&file));
        let closed_file = proc.root.path().join("proc/23/fdinfo/9");
        std::os::unix::fs::symlink("nowhere", closed_file).expect("linked");
        assert_eq!(proc.used("0000:03:00.0"), [(23, "a".to_owned(), 1024)]);
    }

    #[test]
    fn a_process_without_its_main_thread_still_counts() {
        let proc = Proc::new();
        proc.process(60, "a", &[]);
        let file = client("0000:03:00.0", 1, "drm-resident-vram: 1 MiB");
        fs::create_dir_all(proc.root.path().join("proc/60/fdinfo")).expect("made");
        fs::create_dir_all(proc.root.path().join("proc/60/task/60/fdinfo")).expect("made");
        proc.write("60/task/61/fdinfo/3", &file);
        proc.write("60/task/62/fdinfo/3", &file);
        assert_eq!(proc.used("0000:03:00.0"), [(60, "a".to_owned(), 1024)]);
    }

    #[test]
    fn a_gpu_whose_driver_reports_no_memory_is_unmeasured() {
        let proc = Proc::new();
        let reporting = client("0000:0a:00.0", 1, "drm-resident-vram: 1 MiB");
        for unmeasured in [
            client("0000:03:00.0", 1, "drm-engine-gfx: 5 ns"),
            "drm-pdev:\t0000:03:00.0\ndrm-resident-vram: 1 MiB\n".to_owned(),
            "drm-pdev:\t0000:03:00.0\ndrm-client-id:\t-1\ndrm-resident-vram: 1 MiB".to_owned(),
        ] {
            proc.process(30, "a", &[unmeasured, reporting.clone()]);
            let processes = proc.read().expect("read").on_gpu(gpu("0000:03:00.0"));
            assert!(matches!(processes, Err(DrmError::Unmeasured)), "{processes:?}");
        }
        assert_eq!(proc.used("0000:0a:00.0"), [(30, "a".to_owned(), 1024)]);
    }

    #[test]
    fn hidden_processes_are_an_error_and_hidden_files_a_reason() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let hidden = DrmProcesses::read(&Host::new(root.path(), "/"), &BTreeSet::new());
        assert!(matches!(hidden, Err(DrmError::Hidden)), "{hidden:?}");
        let proc = Proc::new();
        proc.process(40, "a", &[]);
        // A folder in the place of a file cannot be read, as a file that the kernel refuses.
        fs::create_dir_all(proc.root.path().join("proc/40/fdinfo/3")).expect("made");
        let snapshot = proc.read().expect("other processes are read");
        assert!(
            snapshot.unreadable_pods()[UID].contains("files of process 40 are hidden"),
            "{snapshot:?}"
        );
        let snapshot_of_other_pod = DrmProcesses::read(&proc.host, &["f".repeat(32)].into());
        let snapshot_of_other_pod =
            snapshot_of_other_pod.expect("files of other pods are not read");
        assert_eq!(snapshot_of_other_pod.pods_with_processes(), &[UID.to_owned()].into());
    }

    #[test]
    fn a_pod_with_too_many_open_files_hides_only_itself() {
        let proc = Proc::new();
        let files = vec!["pos: 0".to_owned(); MAX_ENTRIES + 1];
        proc.process(50, "a", &files);
        let other = "b".repeat(36);
        proc.write("51/cgroup", &format!("0::/kubepods/pod{other}/c"));
        proc.write("51/fdinfo/3", &client("0000:03:00.0", 1, "drm-resident-vram: 1 MiB"));
        let snapshot = DrmProcesses::read(&proc.host, &[UID.to_owned(), other].into());
        let snapshot = snapshot.expect("the other pod is read");
        let reason = "there are too many open files of process 50: 20000 are read at most";
        assert_eq!(snapshot.unreadable_pods()[UID], reason);
        assert_eq!(snapshot.on_gpu(gpu("0000:03:00.0")).expect("measured").len(), 1);
    }

    #[test]
    fn locks_of_a_file_do_not_hide_its_drivers_lines() {
        let proc = Proc::new();
        let locks = "lock:\t1: POSIX  ADVISORY  WRITE 1 00:05:7 0 EOF\n".repeat(5000);
        let file = client("0000:03:00.0", 1, "drm-resident-vram: 1 MiB");
        proc.process(52, "a", &[format!("{locks}{file}")]);
        assert_eq!(proc.used("0000:03:00.0"), [(52, "a".to_owned(), 1024)]);
        proc.process(52, "a", &[format!("{}{file}", locks.repeat(10))]);
        assert!(
            proc.read().expect("read").unreadable_pods().contains_key(UID),
            "the description is longer than the limit"
        );
    }
}

//! Schedule of scans, with a scanner that counts; and tracking of devices, with a scanner that returns given
//! results.

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use windlass_config::{DiscoveryRule, HostPaths, SourceRule};
use windlass_core::device::{DeviceKind, DeviceNode};

use super::*;

const NAME: SourceName = SourceName::NVME;

/// Finds nothing, and counts scans.
struct CountingScanner(watch::Sender<u32>);

impl Scanner for CountingScanner {
    fn names(&self) -> Vec<SourceName> {
        vec![NAME]
    }

    fn scan(&mut self, _: &Host) -> Scan {
        self.0.send_modify(|scans| *scans += 1);
        Scan::default()
    }
}

/// A running scanner with a probe interval of an hour.
struct RunningScanner {
    scans: watch::Receiver<u32>,
    events_sender: watch::Sender<u64>,
    stop: CancellationToken,
    running: JoinSet<()>,
    _policies: watch::Sender<Arc<Policy>>,
}

impl RunningScanner {
    fn start() -> Self {
        let (scan_counter, scans) = watch::channel(0);
        Self::with_scanner(CountingScanner(scan_counter), scans)
    }

    fn with_scanner(scanner: impl Scanner, scans: watch::Receiver<u32>) -> Self {
        let health =
            HealthPolicy { probe_interval: Duration::from_secs(3600), ..Default::default() };
        let policy = Policy { health, ..Policy::default() };
        let (policies, policy_receiver) = watch::channel(Arc::new(policy));
        let (events_sender, event_receiver) = watch::channel(0);
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let task = ScannerTask::new(Box::new(scanner), Host::new("/nowhere", "/"), clock);
        let (publisher, _) = Publisher::new([NAME], &Arc::default());
        let triggers = ScanTriggers { policies: policy_receiver, host_events: event_receiver };
        running.spawn(task.run(triggers, publisher, stop.clone()));
        Self { scans, events_sender, stop, running, _policies: policies }
    }

    fn notify_event(&self) {
        self.events_sender.send_modify(|count| *count += 1);
    }

    fn scans(&self) -> u32 {
        *self.scans.borrow()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_with_constant_events_is_scanned_twice_a_second() {
    let scanner = RunningScanner::start();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scanner.scans(), 1);
    scanner.notify_event();
    sleep(EVENT_DEBOUNCE * 2).await;
    assert_eq!(scanner.scans(), 2, "the first event after a quiet interval counts at once");
    let duration = Duration::from_secs(10);
    let end = Instant::now() + duration;
    while Instant::now() < end {
        scanner.notify_event();
        sleep(Duration::from_millis(5)).await;
    }
    let max_scans = duration.as_millis() / MIN_SCAN_INTERVAL.as_millis();
    assert!(
        (max_scans - 2..=max_scans).contains(&u128::from(scanner.scans() - 2)),
        "{} scans",
        scanner.scans()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pending_event_does_not_delay_the_stop() {
    let mut scanner = RunningScanner::start();
    sleep(Duration::from_millis(1)).await;
    scanner.notify_event();
    sleep(Duration::from_millis(1)).await;
    scanner.stop.cancel();
    let result = timeout(EVENT_DEBOUNCE / 2, scanner.running.join_next()).await;
    result.expect("at once").expect("it ran").expect("it did not panic");
}

/// Returns the next result of a list at each scan. Each device has a node named after the end of its name;
/// `?` is a failed scan.
struct ScriptedScanner(std::vec::IntoIter<&'static str>);

impl Scanner for ScriptedScanner {
    fn names(&self) -> Vec<SourceName> {
        vec![NAME]
    }

    fn scan(&mut self, _: &Host) -> Scan {
        let script = self.0.next().unwrap_or_default();
        let states = [(NAME, SourceState::Ready(String::new()))].into();
        if script == "?" {
            return Scan { states, failed_sources: [NAME].into(), ..Scan::default() };
        }
        let devices = script.split_whitespace().map(|name| {
            let id = name.parse().expect("an id");
            let mut device = Device::new(id, DeviceKind::Other, NAME, Timestamp::UNIX_EPOCH);
            let node = name.rsplit('-').next().unwrap_or_default();
            device.nodes.push(DeviceNode::new(format!("/dev/{node}")));
            (device, Observation::Passed)
        });
        Scan { states, devices: devices.collect(), ..Scan::default() }
    }
}

/// Text of the snapshot after each scan, with a note if the next scan is early.
fn snapshots_of<const SCANS: usize>(script: [&'static str; SCANS]) -> [String; SCANS] {
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let scanner = Box::new(ScriptedScanner(Vec::from(script).into_iter()));
    let mut task = Some(ScannerTask::new(scanner, Host::new("/nowhere", "/"), clock));
    script.map(|_| {
        let scanned_task = task.take().expect("returned by the last scan").scan_and_apply();
        let name = |device: &Device| {
            let suffix = if device.health.has_vanished() { " gone" } else { "" };
            format!("{}{suffix}", device.id)
        };
        let devices: Vec<_> = scanned_task.snapshot().devices.iter().map(name).collect();
        let early_scan_note = if scanned_task.is_uncertain { ", early scan next" } else { "" };
        task = Some(scanned_task);
        format!("{}{early_scan_note}", devices.join(", "))
    })
}

#[test]
fn a_device_that_only_one_scan_found_is_never_published() {
    let half_gone = snapshots_of(["one two", "one half", "one"]);
    assert_eq!(half_gone, ["one, two", "one, two, early scan next", "one, two gone"]);
    let half_there = snapshots_of(["one", "half one", "one two", "one two", "one two"]);
    let (early, both) = ("one, early scan next", "one, two");
    assert_eq!(half_there, ["one", early, early, both, both]);
}

#[test]
fn a_failed_scan_keeps_new_devices_and_makes_no_early_scan() {
    let snapshots = snapshots_of(["one", "one two", "?", "?", "one two"]);
    assert_eq!(snapshots, ["one", "one, early scan next", "one", "one", "one, two"]);
    let missed = snapshots_of(["one", "", "?", ""]);
    assert_eq!(missed, ["one", "one, early scan next", "one", "one gone"]);
}

#[test]
fn a_device_whose_node_a_new_device_has_vanishes_at_once() {
    let snapshots = snapshots_of(["a-node0 b-node1", "c-node0 b-node1", "c-node0 b-node1"]);
    let early_scan = "a-node0 gone, b-node1, early scan next";
    assert_eq!(snapshots, ["a-node0, b-node1", early_scan, "a-node0 gone, b-node1, c-node0"]);
}

#[test]
fn a_tracked_device_needs_no_second_scan_when_it_is_back() {
    let snapshots = snapshots_of(["one", "", "", "one"]);
    let expected = ["one", "one, early scan next", "one gone", "one gone"];
    assert_eq!(snapshots, expected, "unhealthy for the quiet period, without an early scan");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_always_has_a_new_device_is_scanned_twice_a_second() {
    let (scan_counter, scans) = watch::channel(0);
    let scanner = RunningScanner::with_scanner(NewDevicePerScan(scan_counter), scans);
    // Devices of the first scan are tracked at once.
    sleep(Duration::from_secs(1)).await;
    scanner.notify_event();
    let duration = Duration::from_secs(10);
    sleep(duration).await;
    let max_scans = duration.as_millis() / MIN_SCAN_INTERVAL.as_millis();
    assert!(
        (max_scans - 2..=max_scans + 2).contains(&u128::from(scanner.scans())),
        "{} scans",
        scanner.scans()
    );
}

/// Finds another device at each scan.
struct NewDevicePerScan(watch::Sender<u32>);

impl Scanner for NewDevicePerScan {
    fn names(&self) -> Vec<SourceName> {
        vec![NAME]
    }

    fn scan(&mut self, _: &Host) -> Scan {
        self.0.send_modify(|scans| *scans += 1);
        let id = format!("it-{}", *self.0.borrow()).parse().expect("an id");
        let device = Device::new(id, DeviceKind::Other, NAME, Timestamp::UNIX_EPOCH);
        let states = [(NAME, SourceState::Ready(String::new()))].into();
        Scan { states, devices: vec![(device, Observation::Passed)], ..Scan::default() }
    }
}

/// A host with unreadable paths, for root too: a link to itself cannot be followed.
struct UnreadableHost(tempfile::TempDir);

impl UnreadableHost {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn host(&self) -> Host {
        Host::new(self.0.path(), self.0.path())
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        let path = self.0.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        path
    }

    fn seal(&self, path: &str) {
        std::os::unix::fs::symlink(self.path(path), self.path(path)).expect("linked");
    }

    fn open(&self, path: &str) {
        std::fs::remove_file(self.path(path)).expect("it was sealed");
    }
}

fn scanner_task(scanner: Box<dyn Scanner>, unreadable: &UnreadableHost) -> ScannerTask {
    ScannerTask::new(scanner, unreadable.host(), Clock::starting_at(Timestamp::UNIX_EPOCH))
}

/// Checks a scanner's states while each of its folders is unreadable, and after the folder is readable again.
fn check_unreadable_folders(scanner: Box<dyn Scanner>) {
    let unreadable = UnreadableHost::new();
    let (folders, mut task) = (scanner.folders(), scanner_task(scanner, &unreadable));
    for folder in folders {
        unreadable.seal(folder);
        task = task.scan_and_apply();
        let prefix = format!("cannot read {folder}: ");
        let is_failing = |state: &SourceState| {
            let SourceState::Failing(error) = state else { return false };
            error.starts_with(&prefix)
        };
        assert!(task.states.values().all(is_failing), "{:?}", task.states);
        unreadable.open(folder);
        task = task.scan_and_apply();
        let is_absent = |state: &SourceState| matches!(state, SourceState::Absent(_));
        assert!(task.states.values().all(is_absent), "{:?}", task.states);
    }
}

#[test]
fn an_unreadable_folder_is_a_failure_and_a_missing_one_is_absence() {
    crate::tests::scanners(&Policy::default()).for_each(check_unreadable_folders);
}

#[test]
fn an_unreadable_function_is_a_failure_only_if_no_device_is_found() {
    let unreadable = UnreadableHost::new();
    let state = |task: &ScannerTask| task.states[&NAME].clone();
    unreadable.seal("/sys/bus/pci/devices/0000:01:00.0/class");
    let scanned_task = scanner_task(Box::new(crate::nvme::Nvme), &unreadable).scan_and_apply();
    let SourceState::Failing(error) = state(&scanned_task) else {
        panic!("{:?}", scanned_task.states)
    };
    assert!(error.starts_with("cannot read /sys/bus/pci/devices/0000:01:00.0: "), "{error}");
    for (file, text) in [("class", "0x010802"), ("vendor", "0x144d")] {
        let path = format!("/sys/bus/pci/devices/0000:02:00.0/{file}");
        std::fs::write(unreadable.path(&path), text).expect("written");
    }
    assert_eq!(state(&scanned_task.scan_and_apply()), SourceState::Ready("1 drive".to_owned()));
}

#[test]
fn a_described_source_fails_on_an_unreadable_folder() {
    let name: SourceName = "scope".parse().expect("valid");
    let bus = DiscoveryRule::Bus("usb".to_owned());
    let node = DiscoveryRule::Nodes(vec![format!("/dev/{}", "x".repeat(300))]);
    for (find, folder) in [
        (bus, "/sys/bus/usb/devices"),
        (DiscoveryRule::Class("tty".to_owned()), "/sys/class/tty"),
        (DiscoveryRule::Files("/etc/boards".into()), "/etc/boards"),
        (DiscoveryRule::Nodes(vec!["/dev/sn*/*".to_owned()]), "/dev/snd"),
        // The kernel refuses names of this length.
        (node, "/dev/xxx"),
    ] {
        let unreadable = UnreadableHost::new();
        let sources = vec![SourceRule::new(name.clone(), find)];
        let policy = Policy { sources, ..Policy::default() };
        let (sources_scanner, _) = crate::described::ConfiguredSources::new(
            &HostPaths::default(),
            &policy,
            &unreadable.host(),
        );
        unreadable.seal(folder);
        let scanned_task = scanner_task(Box::new(sources_scanner), &unreadable).scan_and_apply();
        let SourceState::Failing(error) = &scanned_task.states[&name] else {
            panic!("{:?}", scanned_task.states)
        };
        assert!(error.starts_with(&format!("cannot read {folder}")), "{error}");
        unreadable.open(folder);
    }
}

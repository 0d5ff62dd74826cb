//! A node in a temporary folder, with any devices but GPUs: a simulated host, an agent, a kubelet.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use windlass_core::{
    device::Device,
    inventory::{Inventory, SourceState},
};
use windlass_kubelet_sim::{Container, Kubelet, Pod};
use windlass_machine::{Machine, Profile};
use windlass_node::{
    Config,
    clock::Clock,
    config::{ConfigFile, HealthPolicy, Policy},
    state::NodeState,
};

use crate::common::node::node;
pub(crate) use crate::common::{
    kubelet::{allocatable, pod_with as pod},
    running::{LIMIT, Running},
};

/// How long a device must be quiet in these tests.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// A machine without devices, to which those of a test are added.
const EMPTY: &str = r#"name: any
description: a machine without GPUs
product: Any
driver: {version: 570.133.20, cuda: "12.8"}
numa: [{cpus: "0-7", memory_gib: 16}, {cpus: "8-15", memory_gib: 16}]
cards: {}
gpus: []
"#;

/// A node whose parts are started one by one.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) config: Config,
}

// === impl World ===

impl World {
    /// A machine with devices, as a profile's `devices:` lists them, and an agent's configuration.
    pub(crate) fn new(devices: &str, config: &str) -> Self {
        let indented = devices.lines().fold(String::new(), |all, line| all + "  " + line + "\n");
        let profile = match devices.trim() {
            "" => EMPTY.to_owned(),
            _ => format!("{EMPTY}devices:\n{indented}"),
        };
        Self::of(&Profile::parse("test", &profile).expect("a machine"), config)
    }

    /// A machine after any profile.
    pub(crate) fn of(profile: &Profile, config: &str) -> Self {
        let (_, machine, config) = node(profile, policy(config));
        Self { machine, config }
    }

    /// The agent, with a policy that may be replaced.
    pub(crate) fn agent(&self) -> Running {
        Running::start(&self.config).expect("the agent starts")
    }

    pub(crate) fn kubelet(&self) -> Kubelet {
        let mut config = windlass_kubelet_sim::Config::new(&self.config.kubelet_dir);
        config.numa_nodes = vec![0, 1];
        Kubelet::start(config).expect("the embedded kubelet starts")
    }

    /// A path of the host, as the test finds it.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.config.host_root.join(path.trim_start_matches('/'))
    }

    /// Writes a file of the host.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.host(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Makes a file of the host one that nobody answers who reads it.
    pub(crate) fn hang(&self, path: &str) {
        let path = self.host(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("made");
        fs::remove_file(&path).or_else(unless_missing).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    }

    /// Makes it a file again, and answers who still reads it.
    pub(crate) fn answer(&self, path: &str, text: &str) {
        let fifo = OpenOptions::new().read(true).write(true).open(self.host(path));
        fs::remove_file(self.host(path)).expect("removed");
        self.write(path, text);
        drop(fifo.expect("a FIFO"));
    }

    /// Links that lead to one folder, as a list that is out of bounds would have them; their names begin so.
    pub(crate) fn crowd(&self, list: &str, begin: &str, count: u32) {
        let folder = self.host(list);
        fs::create_dir_all(&folder).expect("made");
        let first = folder.join(format!("{begin}0"));
        symlink("../../devices", &first).expect("linked");
        for number in 1..count {
            let name = folder.join(format!("{begin}{number}"));
            // One more name for the same link costs the machine the least.
            if fs::hard_link(&first, &name).is_err() {
                symlink("../../devices", &name).expect("linked");
            }
        }
    }

    /// Lets something happen, `unplug:stick`.
    pub(crate) fn happen(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect("a fault")).expect("it happens");
    }

    /// What the agent would find, without serving anyone.
    pub(crate) async fn survey(&self) -> NodeState {
        let clock = Clock::starting_at(Timestamp::now());
        windlass_node::agent::survey(&self.config, clock).await
    }
}

/// The policy that a configuration describes, the default one for nothing, with less patience.
pub(crate) fn policy(text: &str) -> Policy {
    let text = if text.is_empty() { "{}" } else { text };
    let config = ConfigFile::parse(Path::new("test.yaml"), text);
    let policy = config.unwrap_or_else(|error| panic!("{error}")).policy;
    let health = HealthPolicy {
        quiet_period: QUIET,
        probe_interval: Duration::from_millis(100),
        // Nothing of these machines hangs; a whole look takes seconds where others want the processors.
        call_deadline: Duration::from_secs(60),
        ..policy.health
    };
    Policy { health, ..policy }
}

/// What a configuration is refused with.
pub(crate) fn refused(text: &str) -> String {
    let config = ConfigFile::parse(Path::new("test.yaml"), text);
    config.expect_err("it is refused").to_string()
}

// === impl Running ===

impl Running {
    /// Waits until a device says this of its health, beginning with `Healthy` or `Unhealthy`.
    pub(crate) async fn until_health(&self, id: &str, health: &str) -> Arc<NodeState> {
        let says = |device: &Device| device.health.to_string().starts_with(health);
        self.until(|state| state.inventory.get(id).is_some_and(says)).await
    }

    /// Puts another policy into effect.
    pub(crate) fn follow(&self, text: &str) {
        self.policy.send_replace(Arc::new(policy(text)));
    }
}

/// Ends a pod. Another without devices goes on: of a kubelet that tells of no pod nothing is believed for
/// long.
pub(crate) async fn end(kubelet: &Kubelet, pod: &str) {
    let idle = Container { name: "main".to_owned(), limits: [].into() };
    kubelet.admit(Pod::new("idle").container(idle)).await.expect("admitted");
    kubelet.delete(&format!("{pod}-uid")).await;
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The device of that id.
pub(crate) fn device<'a>(inventory: &'a Inventory, id: &str) -> &'a Device {
    let known = || inventory.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>();
    inventory.get(id).unwrap_or_else(|| panic!("no {id} among {:?}", known()))
}

/// An attribute of a device, as text.
pub(crate) fn attribute(device: &Device, name: &str) -> Option<String> {
    let mut all = device.attributes.iter();
    all.find(|(known, _)| known.to_string() == name).map(|(_, value)| value.to_string())
}

/// How a source fares, as text.
pub(crate) fn source(state: &NodeState, name: &str) -> String {
    match state.inventory.sources.get(name) {
        None => "unknown".to_owned(),
        Some(SourceState::Starting) => "starting".to_owned(),
        Some(SourceState::Ready(text)) => format!("ready: {text}"),
        Some(SourceState::Absent(text)) => format!("absent: {text}"),
        Some(SourceState::Failing(text)) => format!("failing: {text}"),
    }
}

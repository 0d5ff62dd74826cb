//! A node for a test: a simulated machine in a folder, and an agent's settings for it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_machine::{Machine, Profile, simulated_driver};
use windlass_node::{
    Config,
    config::{DriverPlaces, Policy, SessionLimits},
};

use super::folder::temporary_folder;

/// The folder, the machine in it, and settings with less patience than usual.
pub(crate) fn node(profile: &Profile, policy: Policy) -> (PathBuf, Machine, Config) {
    let folder = temporary_folder();
    let driver = simulated_driver().expect("cargo builds the simulated driver with the tests");
    let machine = Machine::create(&folder.join("machine"), profile, &driver);
    let machine = machine.expect("a machine");
    // A kubelet that never ran has no folder, which an agent waits for; these come before it or after.
    std::fs::create_dir_all(folder.join("kubelet")).expect("made");
    let config = settings(&folder, &machine, policy);
    (folder, machine, config)
}

/// The settings alone, of an agent whose places are in the folder.
pub(crate) fn settings(folder: &Path, machine: &Machine, policy: Policy) -> Config {
    Config {
        kubelet_dir: folder.join("kubelet"),
        host_root: machine.host_root(),
        host_root_on_node: machine.host_root(),
        driver: DriverPlaces {
            nvml_library: Some(machine.nvml_library()),
            ..DriverPlaces::default()
        },
        state_dir: folder.join("state"),
        mps_dir: "/run/windlass/mps".into(),
        cdi_dir: folder.join("cdi"),
        policy,
        session: SessionLimits {
            stream_deadline: Duration::from_millis(500),
            retry_first: Duration::from_millis(10),
            retry_most: Duration::from_millis(100),
            handover: Duration::from_millis(50),
            look_interval: Duration::from_millis(500),
            claim_patience: Duration::from_millis(200),
            ..SessionLimits::default()
        },
        ..Config::default()
    }
}

//! Store of device fingerprints: the hardware behind each allocated id, for the next agent.
//!
//! The kubelet's checkpoint lists allocated ids. After a device has changed its id, only this file maps the old id to
//! its hardware.

use windlass_config::{Delivery, HostPaths};
use windlass_host::state_file::{Boot, Format, StateFile};
use windlass_resources::offers::Fingerprints;

/// State file `devices.json`.
pub(super) struct FingerprintFile {
    file: StateFile<Fingerprints>,
    written: Fingerprints,
    /// Error of the last write, so that a repeated one is logged once.
    last_error: Option<String>,
}

pub(crate) const FORMAT: Format = Format { name: "record of devices", content_key: "devices" };

const FILE: &str = "devices.json";

// === impl FingerprintFile ===

impl FingerprintFile {
    pub(super) fn new(places: &HostPaths) -> Self {
        Self { file: file(places), written: Fingerprints::new(), last_error: None }
    }

    /// Loads the previous agent's fingerprints. Blocks.
    pub(super) fn load(&mut self, delivery: &Delivery) -> Fingerprints {
        // An unusable file is renamed, so that a person can inspect it.
        self.file.set_aside();
        // After a reboot, containers that got CDI names resolve them again: old fingerprints no
        // longer apply. Device paths from the kubelet's checkpoint stay, and so do their
        // fingerprints.
        let uses_cdi_names = delivery.uses_cdi() && !delivery.pass_device_specs;
        let still_applies = |boot| boot != Boot::Earlier || !uses_cdi_names;
        let previous =
            self.file.load().filter(|state| still_applies(state.boot)).map(|state| state.content);
        self.written = previous.unwrap_or_default();
        self.written.clone()
    }

    /// Writes changed fingerprints. A failure affects the next agent only. Blocks.
    pub(super) fn write(&mut self, fingerprints: &Fingerprints) {
        if *fingerprints == self.written {
            return;
        }
        let Err(error) = self.file.write(fingerprints).map_err(|error| error.to_string()) else {
            self.written.clone_from(fingerprints);
            self.last_error = None;
            return;
        };
        if self.last_error.replace(error.clone()).as_ref() != Some(&error) {
            let path = self.file.path().display();
            tracing::warn!(%path, error, "device fingerprints not written for the next agent");
        }
    }
}

/// True if an agent offered devices since boot. An unreadable file counts as true. Blocks.
pub(crate) fn were_offered(places: &HostPaths) -> bool {
    let file = file(places);
    match file.load() {
        Some(previous) => previous.boot != Boot::Earlier && !previous.content.is_empty(),
        None => file.path().exists(),
    }
}

fn file(places: &HostPaths) -> StateFile<Fingerprints> {
    StateFile::new(places.state_dir.join(FILE), FORMAT, places.host())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use windlass_config::DeviceListStrategy;
    use windlass_host::state_file::BOOT_ID;

    use super::*;

    #[test]
    fn fingerprints_survive_a_reboot_unless_containers_get_cdi_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (root, state_dir) = (folder.path().to_owned(), folder.path().join("state"));
        let places = HostPaths {
            host_root: root.clone(),
            host_root_on_node: root.clone(),
            state_dir,
            ..HostPaths::default()
        };
        let set_boot = |id: &str| {
            let path = root.join(BOOT_ID.trim_start_matches('/'));
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, id).expect("written");
        };
        set_boot("one");
        let things =
            json!([{"node": "/dev/port0"}, {"function": "0000:1a:00.0"}, {"place": "10.0.0.7"}]);
        let port = json!({"source": "fpga", "things": things, "whole": null, "part": false});
        let fingerprints: Fingerprints =
            serde_json::from_value(json!({"port": port})).expect("fingerprints");
        FingerprintFile::new(&places).write(&fingerprints);
        let by_names = Delivery::default();
        let by_nodes =
            Delivery { strategies: [DeviceListStrategy::Envvar].into(), ..Delivery::default() };
        for (id, delivery, expected) in [
            ("one", &by_names, &fingerprints),
            ("two", &by_names, &Fingerprints::new()),
            ("two", &by_nodes, &fingerprints),
        ] {
            set_boot(id);
            assert_eq!(FingerprintFile::new(&places).load(delivery), *expected, "in boot {id}");
        }
    }
}

//! What ids stood for when they were given away, kept on disk for the next life of the agent.
//!
//! Who holds an id is in the kubelet's record, and only there; what the id was when it was given away nobody
//! else can tell once the device goes by another.

use windlass_config::{Delivery, DeviceNodes, Places};
use windlass_host::state_file::{Boot, Format, KeptFile};
use windlass_resources::offers::Marked;

/// What ids stood for, as it is on the disk.
pub(super) struct NotesFile {
    file: KeptFile<Marked>,
    written: Marked,
    /// Why not more, as it was told last.
    refused: Option<String>,
}

pub(crate) const FORMAT: Format = Format { what: "record of devices", about: "devices" };

const FILE: &str = "devices.json";

// === impl NotesFile ===

impl NotesFile {
    pub(super) fn new(places: &Places) -> Self {
        Self { file: file(places), written: Marked::new(), refused: None }
    }

    /// Takes up what an earlier life noted. Blocks.
    pub(super) fn load(&mut self, delivery: &Delivery) -> Marked {
        self.file.set_aside();
        // A reboot makes containers anew, out of what their CDI names stand for by then; paths that the
        // kubelet has from before it would pass on.
        let by_name = delivery.uses_cdi() && delivery.nodes == DeviceNodes::ByRuntime;
        let holds = |boot| boot != Boot::Another || !by_name;
        let earlier = self.file.load().filter(|it| holds(it.boot)).map(|it| it.content);
        self.written = earlier.unwrap_or_default();
        self.written.clone()
    }

    /// Writes what is noted. A disk that does not take it costs what the next life would know, and no pod. Blocks.
    pub(super) fn write(&mut self, marked: &Marked) {
        if *marked == self.written {
            return;
        }
        let refused = match self.file.write(marked) {
            Ok(()) => {
                self.written.clone_from(marked);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = refused.as_ref().filter(|_| refused != self.refused) {
            let path = self.file.path().display();
            tracing::warn!(%path, error, "cannot keep what devices are for the next agent");
        }
        self.refused = refused;
    }
}

/// Whether an earlier life of the agent offered devices to containers since the machine was started. What it
/// kept and cannot be read may say so. Blocks.
pub(crate) fn were_offered(places: &Places) -> bool {
    let file = file(places);
    match file.load() {
        Some(earlier) => earlier.boot != Boot::Another && !earlier.content.is_empty(),
        None => file.path().exists(),
    }
}

fn file(places: &Places) -> KeptFile<Marked> {
    KeptFile::new(places.state_dir.join(FILE), FORMAT, places.host())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use windlass_config::Strategy;
    use windlass_host::state_file::BOOT_ID;

    use super::*;

    #[test]
    fn notes_end_with_a_boot_where_containers_are_made_by_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (root, state_dir) = (folder.path().to_owned(), folder.path().join("state"));
        let places = Places {
            host_root: root.clone(),
            host_root_on_node: root.clone(),
            state_dir,
            ..Places::default()
        };
        let boot = |id: &str| {
            let path = root.join(BOOT_ID.trim_start_matches('/'));
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, id).expect("written");
        };
        boot("one");
        let things =
            json!([{"node": "/dev/port0"}, {"function": "0000:1a:00.0"}, {"place": "10.0.0.7"}]);
        let port = json!({"source": "fpga", "things": things, "whole": null, "part": false});
        let marked: Marked = serde_json::from_value(json!({"port": port})).expect("marks");
        NotesFile::new(&places).write(&marked);
        let by_names = Delivery::default();
        let by_nodes = Delivery { strategies: [Strategy::Envvar].into(), ..Delivery::default() };
        for (id, delivery, expected) in [
            ("one", &by_names, &marked),
            ("two", &by_names, &Marked::new()),
            ("two", &by_nodes, &marked),
        ] {
            boot(id);
            assert_eq!(NotesFile::new(&places).load(delivery), *expected, "in boot {id}");
        }
    }
}

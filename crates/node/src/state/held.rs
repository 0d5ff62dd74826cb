//! Who holds what, by the kubelet's own record.

use std::{collections::BTreeSet, path::Path};

use windlass_kubelet_api::checkpoint::Checkpoint;

use crate::{causes, offer::Held};

/// What containers hold, by the kubelet's own record. Without a record nothing is held; `None` for one
/// that cannot be read, which is no reason not to serve.
pub(super) fn read(path: &Path) -> Option<Held> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Held::new()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the kubelet's record");
            return None;
        }
    };
    let record = match Checkpoint::parse(text.trim_end()) {
        Ok(record) => record,
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(path = %path.display(), error, "ignoring the kubelet's record");
            return None;
        }
    };
    let names = record.pods.iter().flatten().map(|entry| entry.resource_name.clone());
    let names: BTreeSet<String> = names.collect();
    let held = |name: &String| {
        let ids = record.held(name).map(str::to_owned).collect();
        Some((name.parse().ok()?, ids))
    };
    Some(names.iter().filter_map(held).collect())
}

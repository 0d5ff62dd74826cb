//! Devices of the sources that the configuration describes.

use std::path::Path;

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::Observation,
    inventory::SourceState,
};

use super::family::{Family, Look};
use crate::{
    config::{Find, Policy, SourceRule},
    host::Host,
};

/// The family of all that is described.
#[derive(Debug)]
pub(super) struct Described {
    rules: Vec<SourceRule>,
}

// === impl Described ===

impl Described {
    pub(super) fn new(policy: &Policy) -> Self {
        Self { rules: policy.sources.clone() }
    }
}

impl Family for Described {
    fn names(&self) -> Vec<SourceName> {
        self.rules.iter().map(|rule| rule.name.clone()).collect()
    }

    fn look(&mut self, host: &Host) -> Look {
        let mut look = Look::default();
        for rule in &self.rules {
            let found = find(rule, host);
            let state = match found.len() {
                0 => SourceState::Absent("nothing matches".to_owned()),
                several => SourceState::Ready(format!("{several} devices")),
            };
            look.states.insert(rule.name.clone(), state);
            look.found.extend(found);
        }
        look
    }

    fn adopt(&mut self, policy: &Policy) {
        self.rules.clone_from(&policy.sources);
    }
}

fn find(rule: &SourceRule, host: &Host) -> Vec<(Device, Observation)> {
    let Find::Nodes(patterns) = &rule.find else { return Vec::new() };
    let present = patterns.iter().map(Path::new).filter(|path| host.has(path));
    let device = |(index, path): (u32, &Path)| {
        let name = path.file_name()?.to_str()?;
        let id = format!("{}-{name}", rule.name).parse().ok()?;
        let nodes = vec![DeviceNode::new(path)];
        let new = Device::new(id, DeviceKind::Other, rule.name.clone(), Timestamp::UNIX_EPOCH);
        Some((Device { index, nodes, ..new }, Observation::Passed))
    };
    (0..).zip(present).filter_map(device).collect()
}

//! Features for every GPU container: `GPUDirect` Storage, RDMA, `GDRCopy` and IMEX channels. Each feature
//! has its own document.

use std::path::{Path, PathBuf};

use windlass_config::{Delivery, Feature};
use windlass_core::cdi::{ContainerEdits, Kind, Spec, SpecDevice, SpecMount as Mount};
use windlass_host::Roots;

use super::nodes::node;

/// Documents of the configured features that this host has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) documents: Vec<(Kind, Spec)>,
    /// Qualified CDI names of the features, in order.
    pub(super) names: Vec<String>,
    /// Messages about features and channels that this host lacks.
    pub(super) problems: Vec<String>,
    /// Configured IMEX channels without a node on this host.
    pub(super) missing_channels: Vec<u32>,
}

/// Name of the single device in a feature's document.
const ALL: &str = "all";

const IMEX_CHANNEL: Kind = Kind::new("imex-channel");

/// Folder of the driver's IMEX channels.
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels";

// === impl Features ===

impl Features {
    pub(super) fn find(roots: &Roots, delivery: &Delivery) -> Self {
        let mut features = Self::default();
        for feature in &delivery.features {
            features.add_feature(roots, *feature);
        }
        features.add_channels(roots, delivery.imex.channels.iter().copied());
        features
    }

    fn add_feature(&mut self, roots: &Roots, feature: Feature) {
        let (kind, patterns) = describe(feature);
        let nodes: Vec<_> = patterns.iter().flat_map(|pattern| matching(roots, pattern)).collect();
        if nodes.is_empty() {
            self.problems.push(format!("{kind}: the host has no {}", patterns.join(", ")));
            return;
        }
        let edits = ContainerEdits {
            device_nodes: nodes.iter().map(|path| node(roots, path)).collect(),
            mounts: if feature == Feature::Gds { storage_files(roots) } else { Vec::new() },
            ..ContainerEdits::default()
        };
        let devices = vec![SpecDevice::new(ALL, edits)];
        self.names.push(kind.qualify(ALL));
        let document = Spec::new(&kind, devices, ContainerEdits::default());
        self.documents.push((kind, document));
    }

    fn add_channels(&mut self, roots: &Roots, channels: impl Iterator<Item = u32>) {
        let mut devices = Vec::new();
        for channel in channels {
            let path = imex_node(channel);
            if !roots.dev.exists(&path) {
                self.problems.push(format!("IMEX channel {channel}: no {}", path.display()));
                self.missing_channels.push(channel);
                continue;
            }
            let device_nodes = vec![node(roots, &path)];
            let edits = ContainerEdits { device_nodes, ..ContainerEdits::default() };
            devices.push(SpecDevice::new(channel.to_string(), edits));
            self.names.push(IMEX_CHANNEL.qualify(channel));
        }
        if !devices.is_empty() {
            let document = Spec::new(&IMEX_CHANNEL, devices, ContainerEdits::default());
            self.documents.push((IMEX_CHANNEL, document));
        }
    }
}

/// Device node of an IMEX channel.
pub fn imex_node(channel: u32) -> PathBuf {
    Path::new(CHANNELS).join(format!("channel{channel}"))
}

/// Kind and device nodes of a feature. A trailing star matches any suffix.
fn describe(feature: Feature) -> (Kind, &'static [&'static str]) {
    match feature {
        Feature::Gds => (Kind::new("gds"), &["/dev/nvidia-fs*"]),
        Feature::Mofed => {
            (Kind::new("mofed"), &["/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"])
        }
        Feature::Gdrcopy => (Kind::new("gdrcopy"), &["/dev/gdrdrv"]),
    }
}

fn matching(roots: &Roots, pattern: &str) -> Vec<PathBuf> {
    let Some(prefix) = pattern.strip_suffix('*') else {
        return roots.dev.exists(pattern).then(|| pattern.into()).into_iter().collect();
    };
    let (folder, prefix) = prefix.rsplit_once('/').unwrap_or(("/", prefix));
    let names = roots.dev.entry_names(folder).into_iter().filter(|name| name.starts_with(prefix));
    names.map(|name| Path::new(folder).join(name)).collect()
}

/// Files that `GPUDirect` Storage reads: udev's database of disks, and its configuration.
fn storage_files(roots: &Roots) -> Vec<Mount> {
    let file = |path: &str| {
        let trees = [&roots.driver, &roots.host].into_iter();
        let path_on_node =
            trees.filter(|tree| tree.exists(path)).map(|tree| tree.path_on_node(path)).next();
        Some(Mount::read_only(path_on_node?, path))
    };
    ["/run/udev", "/etc/cufile.json"].into_iter().filter_map(file).collect()
}

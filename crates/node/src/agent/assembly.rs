//! The wiring: which part reads what from which.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::{Notify, watch};

use super::parts::Parts;
use crate::{
    clock::Clock,
    config::{Config, Policy},
    directory::DirectoryWatch,
    discovery::{self, Source, SourceSnapshot},
    host::Roots,
    mps::{Mps, MpsPlaces, MpsWants},
    plugin::Plugins,
    state::{Keeper, NodeState, Notices, Outlets},
};

/// What was taken and checked before anything runs.
pub(super) struct Ground {
    /// The kubelet's folder for plugins.
    pub(super) dir: PathBuf,
    /// Notices from that folder.
    pub(super) watched: DirectoryWatch,
    /// What is wanted of the devices.
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// The time.
    pub(super) clock: Clock,
}

/// The newest snapshot of each source.
type Snapshots = Vec<(&'static str, watch::Receiver<SourceSnapshot>)>;

/// Starts every part, sources first, and gives the state that they make together.
pub(super) fn assemble(
    config: &Config,
    ground: Ground,
    parts: &mut Parts,
) -> watch::Receiver<Arc<NodeState>> {
    let Ground { dir, watched, policy, clock } = ground;
    let (changes, directory) = watch::channel(0);
    let look = config.session.look_interval;
    parts.add("watch of the kubelet's folder", watched.run(changes, look));

    let news = Arc::new(Notify::new());
    let mut sources = discovery::sources(config, &policy, clock, &news, &parts.token());
    for keep in sources.iter_mut().filter_map(|source| source.keep.take()) {
        parts.add("record of health", keep);
    }
    let snapshots = start(sources, parts);
    let (mps_wants, wanted) = watch::channel(Arc::new(MpsWants::default()));
    let (daemons, mps) = Mps::new(config, wanted, &news);
    parts.add("MPS daemons", daemons.run(parts.token()));

    let (publish, state) = watch::channel(Arc::new(NodeState::default()));
    let notices = Notices { news, kubelet_writes: directory.clone(), policy, mps };
    let outlets = Outlets { state: publish, mps_wants };
    let keeper = Keeper::new(config, snapshots, notices, outlets);
    parts.add("keeper", keeper.run(parts.token()));

    let plugins = Plugins {
        roots: Roots::new(config),
        mps: MpsPlaces::new(config),
        limits: config.session,
        state: state.clone(),
        directory,
        dir,
    };
    parts.add("device plugin", plugins.run(parts.token()));
    state
}

/// Starts every source of devices.
pub(super) fn start(sources: Vec<Source>, parts: &mut Parts) -> Snapshots {
    let start = |source: Source| {
        parts.add(source.name, source.run);
        (source.name, source.snapshots)
    };
    sources.into_iter().map(start).collect()
}

//! Folder of registration sockets: new sockets register, missing ones are given up.
//!
//! ```text
//!             appears             succeeds
//!  (nothing) ────────> Registering ────────> Registered
//!      ^                 ^     │ fails           │ goes, or is another socket
//!      │       pause over│     v                 │
//!      └─── goes ────── Resting <────────────────┘ (without pause)
//! ```

mod folder;
mod registering;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};
use windlass_kubelet_api::socket::SocketIdentity;

use self::{
    folder::Folder,
    registering::{Registered, Registering},
};
use crate::{config::Config, fault::Misbehaviour, manager_task::ManagerHandle};

/// Longest pause between two attempts (`maxDurationBeforeRetry`).
const MAX_PAUSE: Duration = Duration::from_secs(122);

/// Registration state of a socket.
#[derive(Clone, Debug)]
enum Known {
    Registering,
    Registered { identity: SocketIdentity, plugin: Registered },
    Resting { until: Instant, pause: Duration },
}

struct Registry {
    handle: ManagerHandle,
    config: Arc<Config>,
    faults: watch::Receiver<Misbehaviour>,
    known: BTreeMap<PathBuf, Known>,
    attempts: JoinSet<Attempt>,
}

/// A finished attempt, with its pause after a failure.
struct Attempt {
    socket: PathBuf,
    identity: SocketIdentity,
    plugin: Option<Registered>,
    pause: Duration,
}

/// Watches the folder for as long as the kubelet lives.
pub(crate) async fn watch(
    handle: ManagerHandle,
    config: Arc<Config>,
    faults: watch::Receiver<Misbehaviour>,
) {
    let mut folder = Folder::watch(config.registry_dir());
    let period = config.dra.registry_period;
    let mut registry =
        Registry { handle, config, faults, known: BTreeMap::new(), attempts: JoinSet::new() };
    loop {
        registry.compare(folder.sockets()).await;
        tokio::select! {
            Some(attempt) = registry.attempts.join_next(), if !registry.attempts.is_empty() => {
                match attempt {
                    Ok(attempt) => registry.note(attempt),
                    Err(error) => resume_unwind(error.into_panic()),
                }
            }
            // A notice or the end of the period starts the next look.
            _ = timeout(period, folder.changed()) => {}
        }
    }
}

// === impl Registry ===

impl Registry {
    /// Gives up missing or replaced sockets, then registers new ones and those after their pause.
    async fn compare(&mut self, found: BTreeMap<PathBuf, SocketIdentity>) {
        let gone: BTreeSet<PathBuf> = self
            .known
            .iter()
            .filter(|(socket, known)| match known {
                Known::Registered { identity, .. } => found.get(*socket) != Some(identity),
                Known::Resting { until, .. } => {
                    !found.contains_key(*socket) && *until <= Instant::now()
                }
                Known::Registering => false,
            })
            .map(|(socket, _)| socket.clone())
            .collect();
        for socket in gone {
            if let Some(Known::Registered { plugin, .. }) = self.known.remove(&socket) {
                // A stopped kubelet has no drivers.
                let _ = self.handle.update(move |task| task.deregister(&plugin)).await;
            }
        }
        for (socket, identity) in found {
            self.consider(socket, identity);
        }
    }

    fn consider(&mut self, socket: PathBuf, identity: SocketIdentity) {
        let last = match self.known.get(&socket) {
            None => None,
            Some(Known::Resting { until, pause }) if *until <= Instant::now() => Some(*pause),
            Some(Known::Registering | Known::Registered { .. } | Known::Resting { .. }) => return,
        };
        let first = self.config.dra.registration_pause;
        let pause = last.map_or(first, |last| (last * 2).min(MAX_PAUSE));
        let registering = Registering {
            handle: self.handle.clone(),
            config: Arc::clone(&self.config),
            fault: self.faults.borrow().driver_registration.clone(),
            socket: socket.clone(),
        };
        self.known.insert(socket.clone(), Known::Registering);
        self.attempts.spawn(async move {
            let plugin = registering.run().await;
            Attempt { socket, identity, plugin, pause }
        });
    }

    fn note(&mut self, attempt: Attempt) {
        let Attempt { socket, identity, plugin, pause } = attempt;
        let known = match plugin {
            Some(plugin) => Known::Registered { identity, plugin },
            None => Known::Resting { until: Instant::now() + pause, pause },
        };
        self.known.insert(socket, known);
    }
}

//! Folder of registration sockets: the kubelet registers new sockets, and deregisters missing ones.
//!
//! ```text
//!             appears             succeeds
//!  (nothing) ────────> Registering ────────> Registered
//!    ^   ^               ^     │ fails           │ removed or replaced:
//!    │   │     pause over│     v                 │ deregister
//!    │   └─ removed ─── BackingOff               │
//!    └───────────────────────────────────────────┘
//! ```

mod attempt;
mod folder;

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
    attempt::{RegisteredEndpoint, RegistrationAttempt},
    folder::Folder,
};
use crate::{config::Config, fault::Faults, manager_task::ManagerHandle};

/// Longest pause between two attempts (`maxDurationBeforeRetry`).
const RETRY_MAX: Duration = Duration::from_secs(122);

/// Registration state of a socket.
#[derive(Clone, Debug)]
enum SocketState {
    /// An attempt is in progress.
    Registering,
    /// The plugin of this socket file is registered.
    Registered { identity: SocketIdentity, plugin: RegisteredEndpoint },
    /// The last attempt failed; the next one follows after `retry_at`.
    BackingOff { retry_at: Instant, pause: Duration },
}

struct Registry {
    handle: ManagerHandle,
    config: Arc<Config>,
    faults: watch::Receiver<Faults>,
    sockets: BTreeMap<PathBuf, SocketState>,
    attempts: JoinSet<AttemptResult>,
}

/// Result of a registration attempt.
struct AttemptResult {
    socket: PathBuf,
    identity: SocketIdentity,
    /// The registered plugin; `None` after a failure.
    plugin: Option<RegisteredEndpoint>,
    /// Pause before the next attempt, after a failure.
    retry_delay: Duration,
}

/// Watches the folder and keeps the registrations in sync with it. Never returns.
pub(crate) async fn watch(
    handle: ManagerHandle,
    config: Arc<Config>,
    faults: watch::Receiver<Faults>,
) {
    let mut folder = Folder::watch(config.registry_dir());
    let period = config.dra.registry_period;
    let mut registry =
        Registry { handle, config, faults, sockets: BTreeMap::new(), attempts: JoinSet::new() };
    loop {
        registry.reconcile(folder.sockets()).await;
        tokio::select! {
            Some(attempt) = registry.attempts.join_next(), if !registry.attempts.is_empty() => {
                match attempt {
                    Ok(attempt) => registry.record(attempt),
                    Err(error) => resume_unwind(error.into_panic()),
                }
            }
            // A change of the folder, or the end of the period, starts the next scan.
            _ = timeout(period, folder.changed()) => {}
        }
    }
}

// === impl Registry ===

impl Registry {
    /// Deregisters missing and replaced sockets. Then starts attempts for new sockets, and for sockets
    /// whose pause is over.
    async fn reconcile(&mut self, current_sockets: BTreeMap<PathBuf, SocketIdentity>) {
        let stale_sockets: BTreeSet<PathBuf> = self
            .sockets
            .iter()
            .filter(|(socket, state)| match state {
                SocketState::Registered { identity, .. } => {
                    current_sockets.get(*socket) != Some(identity)
                }
                SocketState::BackingOff { retry_at, .. } => {
                    !current_sockets.contains_key(*socket) && *retry_at <= Instant::now()
                }
                SocketState::Registering => false,
            })
            .map(|(socket, _)| socket.clone())
            .collect();
        for socket in stale_sockets {
            if let Some(SocketState::Registered { plugin, .. }) = self.sockets.remove(&socket) {
                // A stopped kubelet has no drivers to deregister.
                let _ = self.handle.update(move |task| task.deregister(&plugin)).await;
            }
        }
        for (socket, identity) in current_sockets {
            self.register_if_due(socket, identity);
        }
    }

    /// Starts an attempt, unless the socket is registered, has an attempt in progress, or backs off.
    fn register_if_due(&mut self, socket: PathBuf, identity: SocketIdentity) {
        let last_pause = match self.sockets.get(&socket) {
            None => None,
            Some(SocketState::BackingOff { retry_at, pause }) if *retry_at <= Instant::now() => {
                Some(*pause)
            }
            Some(
                SocketState::Registering
                | SocketState::Registered { .. }
                | SocketState::BackingOff { .. },
            ) => return,
        };
        let first_pause = self.config.dra.registration_retry_min;
        let pause = last_pause.map_or(first_pause, |last_pause| (last_pause * 2).min(RETRY_MAX));
        let attempt = RegistrationAttempt {
            handle: self.handle.clone(),
            config: Arc::clone(&self.config),
            fault: self.faults.borrow().driver_registration.clone(),
            socket: socket.clone(),
        };
        self.sockets.insert(socket.clone(), SocketState::Registering);
        self.attempts.spawn(async move {
            let plugin = attempt.run().await;
            AttemptResult { socket, identity, plugin, retry_delay: pause }
        });
    }

    fn record(&mut self, attempt: AttemptResult) {
        let AttemptResult { socket, identity, plugin, retry_delay: pause } = attempt;
        let state = match plugin {
            Some(plugin) => SocketState::Registered { identity, plugin },
            None => SocketState::BackingOff { retry_at: Instant::now() + pause, pause },
        };
        self.sockets.insert(socket, state);
    }
}

//! The plugins behind the resources: who is called, and what a lost stream does.
//!
//! ```text
//!  Register ─> client in the table ─> dial, options ─> endpoint ─> list ... list ─> stream ends
//!                  │ fails: removed,                    replaces the                  │
//!                  └ an older endpoint stays            older one     client of this key, if any:
//!                    (a zombie)                                       closed, endpoint stopped,
//!                                                                     devices unhealthy
//! ```
//!
//! Up to 1.36 the key is the resource, so the end of an old stream closes the newest client, and
//! the end of a stream whose key is gone changes nothing. From 1.37 the socket is in the key.

use std::path::{Path, PathBuf};

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Manager;
use crate::{
    config::Release,
    plugin::{Plugin, RpcError},
    status::PluginOptions,
};

/// Under which a client is found when a stream ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientKey {
    resource: String,
    /// From 1.37 on.
    socket: Option<PathBuf>,
}

/// Whom to call for a resource.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The plugin's socket; `None` after a restart, before the plugin registered again.
    pub(crate) socket: Option<PathBuf>,
    /// The connection. `None` when stopped.
    pub(crate) plugin: Option<Plugin>,
    /// What the plugin answered to `GetDevicePluginOptions`; unknown after a restart.
    pub(crate) options: Option<PluginOptions>,
    /// When the plugin was lost.
    pub(crate) stopped_at: Option<Instant>,
}

// === impl Endpoint ===

impl Endpoint {
    /// A plugin that answered.
    pub(crate) fn connected(plugin: Plugin, options: PluginOptions) -> Self {
        Self {
            socket: Some(plugin.socket().to_owned()),
            plugin: Some(plugin),
            options: Some(options),
            stopped_at: None,
        }
    }

    /// A resource of the checkpoint, whose plugin has not registered yet.
    pub(crate) fn remembered(now: Instant) -> Self {
        Self { socket: None, plugin: None, options: None, stopped_at: Some(now) }
    }

    /// The connection, unless the plugin was lost.
    pub(crate) fn plugin(&self, resource: &str) -> Result<Plugin, RpcError> {
        let stopped = || RpcError::Stopped { resource: resource.to_owned() };
        self.plugin.clone().ok_or_else(stopped)
    }

    /// Whether the plugin wants `GetPreferredAllocation`.
    pub(crate) fn wants_preferred(&self) -> bool {
        self.options.is_some_and(|options| options.get_preferred_allocation_available)
    }

    /// Whether the plugin wants `PreStartContainer`.
    pub(crate) fn wants_pre_start(&self) -> bool {
        self.options.is_some_and(|options| options.pre_start_required)
    }
}

impl Manager {
    fn client_key(&self, resource: &str, socket: &Path) -> ClientKey {
        let socket = match self.release {
            Release::UpTo1_36 => None,
            Release::From1_37 => Some(socket.to_owned()),
        };
        ClientKey { resource: resource.to_owned(), socket }
    }

    /// A registration was accepted and the plugin is being dialled.
    pub(crate) fn client_begins(
        &mut self,
        resource: &str,
        socket: &Path,
        close: CancellationToken,
    ) {
        self.clients.insert(self.client_key(resource, socket), close);
    }

    /// Dial or options failed. Whatever client has the key is forgotten, endpoints stay.
    pub(crate) fn client_failed(&mut self, resource: &str, socket: &Path) {
        self.clients.remove(&self.client_key(resource, socket));
    }

    /// The plugin answered: calls go to it from now on, devices wait for its first list.
    pub(crate) fn client_connected(&mut self, resource: &str, endpoint: Endpoint) {
        self.endpoints.insert(resource.to_owned(), endpoint);
    }

    /// A stream ended: closes the client that has the key now.
    pub(crate) fn stream_ended(&mut self, resource: &str, socket: &Path, now: Instant) {
        let Some(close) = self.clients.remove(&self.client_key(resource, socket)) else { return };
        close.cancel();
        let concerned = self.endpoints.get_mut(resource).filter(|endpoint| match self.release {
            Release::UpTo1_36 => true,
            Release::From1_37 => endpoint.socket.as_deref() == Some(socket),
        });
        if let Some(endpoint) = concerned {
            endpoint.plugin = None;
            endpoint.stopped_at = Some(now);
            self.mark_unhealthy(resource);
        }
    }

    /// Forgets resources whose plugin has been away longer than the grace period. Returns them; the
    /// checkpoint is to be written if there are any.
    pub(crate) fn expire(&mut self, now: Instant, grace: Duration) -> Vec<String> {
        let is_over = |endpoint: &&Endpoint| {
            endpoint.stopped_at.is_some_and(|stopped| now.duration_since(stopped) > grace)
        };
        let counted = self.healthy.keys().chain(self.unhealthy.keys());
        let mut gone: Vec<String> = counted
            .filter(|resource| self.endpoints.get(*resource).is_none_or(|e| is_over(&e)))
            .cloned()
            .collect();
        gone.dedup();
        for resource in &gone {
            self.endpoints.remove(resource);
            self.healthy.remove(resource);
            self.unhealthy.remove(resource);
            self.expired.insert(resource.clone());
        }
        gone
    }

    /// When the next grace period ends.
    pub(crate) fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        let counted = |resource: &String| {
            self.healthy.contains_key(resource) || self.unhealthy.contains_key(resource)
        };
        self.endpoints
            .iter()
            .filter(|(resource, _)| counted(resource))
            .filter_map(|(_, endpoint)| endpoint.stopped_at)
            .min()
            .map(|stopped| stopped + grace + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, ids, manager},
        *,
    };

    fn endpoint(socket: &str) -> Endpoint {
        Endpoint {
            socket: Some(socket.into()),
            plugin: None,
            options: Some(PluginOptions::default()),
            stopped_at: None,
        }
    }

    /// Registers `one.sock`, then `two.sock`; returns how to tell that they were closed.
    fn two_registered(release: Release) -> (Manager, [CancellationToken; 2]) {
        let mut manager = Manager { release, ..manager(vec![device("a", &[])]) };
        let closed = ["one.sock", "two.sock"].map(|socket| {
            let close = CancellationToken::new();
            manager.client_begins(GPU, Path::new(socket), close.clone());
            manager.client_connected(GPU, endpoint(socket));
            close
        });
        (manager, closed)
    }

    #[tokio::test]
    async fn up_to_1_36_the_end_of_an_old_stream_closes_the_newer_plugin() {
        let (mut manager, [one, two]) = two_registered(Release::UpTo1_36);
        manager.stream_ended(GPU, Path::new("one.sock"), Instant::now());
        assert!(two.is_cancelled() && !one.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 0));
        assert!(manager.endpoints[GPU].stopped_at.is_some());
    }

    #[tokio::test]
    async fn from_1_37_the_end_of_an_old_stream_leaves_the_newer_plugin_alone() {
        let (mut manager, [_, two]) = two_registered(Release::From1_37);
        manager.stream_ended(GPU, Path::new("one.sock"), Instant::now());
        assert!(!two.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 1));
        manager.stream_ended(GPU, Path::new("two.sock"), Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 0));
    }

    #[tokio::test]
    async fn a_failed_registration_leaves_a_zombie() {
        let (mut manager, _) = two_registered(Release::UpTo1_36);
        manager.client_begins(GPU, Path::new("three.sock"), CancellationToken::new());
        manager.client_failed(GPU, Path::new("three.sock"));
        manager.stream_ended(GPU, Path::new("two.sock"), Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 1));
    }

    #[tokio::test]
    async fn a_resource_expires_after_the_grace_period_and_stays_on_the_node_with_nothing() {
        let (mut manager, _) = two_registered(Release::UpTo1_36);
        let lost = Instant::now();
        let grace = Duration::from_secs(300);
        manager.stream_ended(GPU, Path::new("two.sock"), lost);
        assert!(manager.expire(lost + grace, grace).is_empty());
        assert_eq!(manager.unhealthy[GPU], ids("a"));
        assert_eq!(manager.expire(lost + grace + Duration::from_millis(1), grace), [GPU]);
        assert_eq!(manager.counts()[GPU], (0, 0));
        assert!(!manager.is_known(GPU) && manager.next_expiry(grace).is_none());
    }
}

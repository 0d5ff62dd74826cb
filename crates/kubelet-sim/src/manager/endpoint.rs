//! The plugins behind the resources: the endpoint to call, and the effect of a lost stream.
//!
//! ```text
//!  Register ─> in the table ─> dialled ─> options ─> endpoint ─> list ... list ─> stream ends
//!                  │ fails: removed,                  replaces the                   │
//!                  └ an older endpoint stays          older one     the client of its key, if
//!                    (a zombie)                                     any: removed, connection
//!                                                                   closed, endpoint stopped,
//!                                                                   devices unhealthy
//! ```
//!
//! Up to 1.36 the key is the resource. So the end of an old stream closes the newest client. The
//! end of a stream without its key in the table changes nothing. A newest client that still dials
//! has no connection to close. That client continues outside of the table, and the end of its stream
//! will change nothing. From 1.37 the socket is part of the key.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Manager;
use crate::{
    config::Release,
    plugin::{Plugin, RpcError},
    status::PluginOptions,
};

/// Connected or connecting plugins, by the release's key: at most one for each.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_key: BTreeMap<ClientKey, Entry>,
    begun: u64,
}

/// Client of one registration, in the table or removed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    key: ClientKey,
    /// Distinguishes the client from later ones with its key.
    number: u64,
}

/// Key that finds a client when a stream ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientKey {
    resource: String,
    /// Socket of the plugin, from 1.37 on.
    socket: Option<PathBuf>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// Closes the connection, once there is one.
    close: Option<CancellationToken>,
}

/// Endpoint of a resource.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The plugin's socket; `None` after a restart, before the plugin registered again.
    pub(crate) socket: Option<PathBuf>,
    /// The connection. `None` means a lost plugin.
    pub(crate) plugin: Option<Plugin>,
    /// The plugin's answer to `GetDevicePluginOptions`; unknown after a restart.
    pub(crate) options: Option<PluginOptions>,
    /// Time of the plugin's loss.
    pub(crate) stopped_at: Option<Instant>,
}

// === impl Endpoint ===

impl Endpoint {
    /// Endpoint of a connected plugin.
    pub(crate) fn connected(plugin: Plugin, options: PluginOptions) -> Self {
        Self {
            socket: Some(plugin.socket().to_owned()),
            plugin: Some(plugin),
            options: Some(options),
            stopped_at: None,
        }
    }

    /// Endpoint of a resource from the checkpoint, before its plugin registers.
    pub(crate) fn remembered(now: Instant) -> Self {
        Self { socket: None, plugin: None, options: None, stopped_at: Some(now) }
    }

    /// The connection, or an error for a lost plugin.
    pub(crate) fn plugin(&self, resource: &str) -> Result<Plugin, RpcError> {
        let stopped = || RpcError::Stopped { resource: resource.to_owned() };
        self.plugin.clone().ok_or_else(stopped)
    }

    /// True if the plugin wants `GetPreferredAllocation`.
    pub(crate) fn wants_preferred(&self) -> bool {
        self.options.is_some_and(|options| options.get_preferred_allocation_available)
    }

    /// True if the plugin wants `PreStartContainer`.
    pub(crate) fn wants_pre_start(&self) -> bool {
        self.options.is_some_and(|options| options.pre_start_required)
    }
}

// === impl Client ===

impl Client {
    /// Resource of the registration.
    pub(crate) fn resource(&self) -> &str {
        &self.key.resource
    }
}

impl Manager {
    /// Records an accepted registration, whose dial begins.
    pub(crate) fn client_begins(&mut self, resource: &str, socket: &Path) -> Client {
        let socket = match self.release {
            Release::UpTo1_36 => None,
            Release::From1_37 => Some(socket.to_owned()),
        };
        let key = ClientKey { resource: resource.to_owned(), socket };
        self.clients.begun += 1;
        let number = self.clients.begun;
        self.clients.by_key.insert(key.clone(), Entry { number, close: None });
        Client { key, number }
    }

    /// Records the connection that can be closed from now on, if the client is still in the table.
    pub(crate) fn client_dialled(&mut self, client: &Client, close: CancellationToken) {
        let found = self.clients.by_key.get_mut(&client.key);
        if let Some(entry) = found.filter(|entry| entry.number == client.number) {
            entry.close = Some(close);
        }
    }

    /// Records a failed dial or options call. The client with that key is forgotten, endpoints stay.
    pub(crate) fn client_failed(&mut self, client: &Client) {
        self.clients.by_key.remove(&client.key);
    }

    /// Records the plugin's answer. Calls go to this plugin from now on; devices wait for its first list.
    pub(crate) fn client_connected(&mut self, client: &Client, endpoint: Endpoint) {
        self.endpoints.insert(client.resource().to_owned(), endpoint);
    }

    /// Records the end of a client's stream: closes the current client of that key.
    pub(crate) fn stream_ended(&mut self, client: &Client, now: Instant) {
        let ClientKey { resource, socket } = &client.key;
        let Some(newest) = self.clients.by_key.remove(&client.key) else { return };
        if let Some(close) = newest.close {
            close.cancel();
        }
        let concerned = self
            .endpoints
            .get_mut(resource)
            .filter(|endpoint| socket.is_none() || endpoint.socket == *socket);
        if let Some(endpoint) = concerned {
            endpoint.plugin = None;
            endpoint.stopped_at = Some(now);
            self.mark_unhealthy(resource);
        }
    }

    /// Forgets resources whose plugin has been lost longer than the grace period. Returns their
    /// names. The caller writes the checkpoint if there are any.
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
            self.left_over.insert(resource.clone(), 0);
        }
        gone
    }

    /// Time at which the next grace period ends.
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

    /// Runs a registration as far as the table is concerned: begun, dialled, answered.
    fn register(manager: &mut Manager, socket: &str) -> (Client, CancellationToken) {
        let client = manager.client_begins(GPU, Path::new(socket));
        let close = CancellationToken::new();
        manager.client_dialled(&client, close.clone());
        manager.client_connected(&client, endpoint(socket));
        (client, close)
    }

    fn node(release: Release) -> Manager {
        Manager { release, ..manager(vec![device("a", &[])]) }
    }

    #[tokio::test]
    async fn up_to_1_36_the_end_of_an_old_stream_closes_the_newer_plugin() {
        let mut manager = node(Release::UpTo1_36);
        let (first, one) = register(&mut manager, "one.sock");
        let (_, two) = register(&mut manager, "two.sock");
        manager.stream_ended(&first, Instant::now());
        assert!(two.is_cancelled() && !one.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 0));
        assert!(manager.endpoints[GPU].stopped_at.is_some());
    }

    #[tokio::test]
    async fn from_1_37_the_end_of_an_old_stream_leaves_the_newer_plugin_alone() {
        let mut manager = node(Release::From1_37);
        let (first, _) = register(&mut manager, "one.sock");
        let (second, two) = register(&mut manager, "two.sock");
        manager.stream_ended(&first, Instant::now());
        assert!(!two.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 1));
        manager.stream_ended(&second, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 0));
    }

    #[tokio::test]
    async fn a_newer_plugin_that_still_dials_is_not_closed_and_its_own_end_goes_unnoticed() {
        let mut manager = node(Release::UpTo1_36);
        let (first, _) = register(&mut manager, "one.sock");
        let second = manager.client_begins(GPU, Path::new("two.sock"));
        manager.stream_ended(&first, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 0), "the old endpoint is stopped");

        let close = CancellationToken::new();
        manager.client_dialled(&second, close.clone());
        manager.client_connected(&second, endpoint("two.sock"));
        manager.list(GPU, vec![device("a", &[])]);
        assert_eq!(manager.counts()[GPU], (1, 1));
        manager.stream_ended(&second, Instant::now());
        assert!(!close.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 1));
    }

    #[tokio::test]
    async fn of_two_plugins_that_dial_only_the_newer_one_can_be_closed() {
        let mut manager = node(Release::UpTo1_36);
        let first = manager.client_begins(GPU, Path::new("one.sock"));
        let second = manager.client_begins(GPU, Path::new("two.sock"));
        let [one, two] = [&first, &second].map(|client| {
            let close = CancellationToken::new();
            manager.client_dialled(client, close.clone());
            close
        });
        manager.stream_ended(&first, Instant::now());
        assert!(two.is_cancelled() && !one.is_cancelled());
    }

    #[tokio::test]
    async fn a_failed_registration_leaves_a_zombie() {
        let mut manager = node(Release::UpTo1_36);
        let (first, _) = register(&mut manager, "one.sock");
        let failing = manager.client_begins(GPU, Path::new("two.sock"));
        manager.client_failed(&failing);
        manager.stream_ended(&first, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 1));
    }

    #[tokio::test]
    async fn a_resource_expires_after_the_grace_period_and_stays_on_the_node_with_nothing() {
        let mut manager = node(Release::UpTo1_36);
        let (client, _) = register(&mut manager, "one.sock");
        let lost = Instant::now();
        let grace = Duration::from_secs(300);
        manager.stream_ended(&client, lost);
        assert!(manager.expire(lost + grace, grace).is_empty());
        assert_eq!(manager.unhealthy[GPU], ids("a"));
        assert_eq!(manager.expire(lost + grace + Duration::from_millis(1), grace), [GPU]);
        assert_eq!(manager.counts()[GPU], (0, 0));
        assert!(!manager.is_known(GPU) && manager.next_expiry(grace).is_none());
    }
}

//! Plugin registrations: a table of clients, the endpoint to call for each resource, and the effect of a
//! stream's end.
//!
//! ```text
//!  Register ─> client in table ─> dialled ─> options ─> endpoint ─> list ... list ─> stream ends
//!                  │ fails: the client            replaces the                          │
//!                  └ leaves the table, an         older endpoint    finds the client of its key:
//!                    older endpoint stays                           removes it from the table,
//!                                                                   closes its connection, stops
//!                                                                   the endpoint; its devices
//!                                                                   become unhealthy
//! ```
//!
//! Up to 1.36 the key is the resource:
//!
//! - The end of an old stream closes the newest client.
//! - If that newest client is still dialling, it has no connection to close. It only leaves the table,
//!   and connects later. The end of its own stream then changes nothing.
//! - The end of a stream changes nothing if the table has no client with its key.
//!
//! From 1.37 the key is the resource and the socket.

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

/// Table of connected and connecting plugins, with at most one client per key.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_key: BTreeMap<ClientKey, ClientEntry>,
    last_number: u64,
}

/// Identity of the client of one registration, in the table or removed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    key: ClientKey,
    /// Number of the registration; distinguishes clients with the same key.
    number: u64,
}

/// Key of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientKey {
    resource: String,
    /// Socket of the plugin, from 1.37 on.
    socket: Option<PathBuf>,
}

#[derive(Debug)]
struct ClientEntry {
    number: u64,
    /// Closes the connection; `None` until the dial succeeds.
    close: Option<CancellationToken>,
}

/// Endpoint of a resource: the plugin that the device manager calls.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The plugin's socket; `None` after a kubelet restart, until the plugin registers again.
    pub(crate) socket: Option<PathBuf>,
    /// The connection; `None` for a stopped endpoint.
    pub(crate) plugin: Option<Plugin>,
    /// The plugin's answer to `GetDevicePluginOptions`; `None` after a kubelet restart, until the plugin
    /// registers again.
    pub(crate) options: Option<PluginOptions>,
    /// Time of the loss of the plugin, or of the kubelet's restart; `None` for a connected endpoint.
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

    /// Stopped endpoint of a resource in the checkpoint, until its plugin registers.
    pub(crate) fn from_checkpoint(now: Instant) -> Self {
        Self { socket: None, plugin: None, options: None, stopped_at: Some(now) }
    }

    /// The connection, or an error for a stopped endpoint.
    pub(crate) fn plugin(&self, resource: &str) -> Result<Plugin, RpcError> {
        let stopped = || RpcError::Stopped { resource: resource.to_owned() };
        self.plugin.clone().ok_or_else(stopped)
    }

    /// True if the plugin's options include `GetPreferredAllocation`.
    pub(crate) fn has_preferred_allocation(&self) -> bool {
        self.options.is_some_and(|options| options.get_preferred_allocation_available)
    }

    /// True if the plugin's options include `PreStartContainer`.
    pub(crate) fn requires_pre_start(&self) -> bool {
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
    /// Adds a client for a registration that passed the checks, in place of another with its key. The
    /// caller dials next.
    pub(crate) fn add_client(&mut self, resource: &str, socket: &Path) -> Client {
        let socket = match self.release {
            Release::UpTo1_36 => None,
            Release::From1_37 => Some(socket.to_owned()),
        };
        let key = ClientKey { resource: resource.to_owned(), socket };
        self.clients.last_number += 1;
        let number = self.clients.last_number;
        self.clients.by_key.insert(key.clone(), ClientEntry { number, close: None });
        Client { key, number }
    }

    /// Stores the token that closes the client's connection, if the client is still in the table.
    pub(crate) fn client_dialled(&mut self, client: &Client, close: CancellationToken) {
        let current = self.clients.by_key.get_mut(&client.key);
        if let Some(entry) = current.filter(|entry| entry.number == client.number) {
            entry.close = Some(close);
        }
    }

    /// Handles a failed dial or options call: removes the client with that key, even a newer one.
    /// Endpoints stay.
    pub(crate) fn client_failed(&mut self, client: &Client) {
        self.clients.by_key.remove(&client.key);
    }

    /// Makes a connected plugin the endpoint of its resource. Calls go to this plugin from now on. The
    /// devices change with the plugin's first list.
    pub(crate) fn client_connected(&mut self, client: &Client, endpoint: Endpoint) {
        self.endpoints.insert(client.resource().to_owned(), endpoint);
    }

    /// Handles the end of a client's stream: removes the current client of its key, closes that client's
    /// connection, and stops the endpoint.
    pub(crate) fn stream_ended(&mut self, client: &Client, now: Instant) {
        let ClientKey { resource, socket } = &client.key;
        let Some(current) = self.clients.by_key.remove(&client.key) else { return };
        if let Some(close) = current.close {
            close.cancel();
        }
        let endpoint = self
            .endpoints
            .get_mut(resource)
            .filter(|endpoint| socket.is_none() || endpoint.socket == *socket);
        if let Some(endpoint) = endpoint {
            endpoint.plugin = None;
            endpoint.stopped_at = Some(now);
            self.mark_unhealthy(resource);
        }
    }

    /// Removes resources whose endpoint is missing, or stopped for longer than the grace period. Returns
    /// their names. The caller writes the checkpoint if there are any.
    pub(crate) fn remove_expired(&mut self, now: Instant, grace: Duration) -> Vec<String> {
        let is_over = |endpoint: &&Endpoint| {
            endpoint.stopped_at.is_some_and(|stopped_at| now.duration_since(stopped_at) > grace)
        };
        let resources = self.healthy.keys().chain(self.unhealthy.keys());
        let mut expired: Vec<String> = resources
            .filter(|resource| self.endpoints.get(*resource).is_none_or(|e| is_over(&e)))
            .cloned()
            .collect();
        expired.dedup();
        for resource in &expired {
            self.endpoints.remove(resource);
            self.healthy.remove(resource);
            self.unhealthy.remove(resource);
            self.status_only_capacities.insert(resource.clone(), 0);
        }
        expired
    }

    /// Time at which the next grace period is over.
    pub(crate) fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        let is_known = |resource: &String| {
            self.healthy.contains_key(resource) || self.unhealthy.contains_key(resource)
        };
        self.endpoints
            .iter()
            .filter(|(resource, _)| is_known(resource))
            .filter_map(|(_, endpoint)| endpoint.stopped_at)
            .min()
            .map(|stopped_at| stopped_at + grace + Duration::from_millis(1))
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

    /// Registers a plugin: adds its client, stores a token, sets the endpoint. Returns client and token.
    fn register(manager: &mut Manager, socket: &str) -> (Client, CancellationToken) {
        let client = manager.add_client(GPU, Path::new(socket));
        let close = CancellationToken::new();
        manager.client_dialled(&client, close.clone());
        manager.client_connected(&client, endpoint(socket));
        (client, close)
    }

    fn manager_of(release: Release) -> Manager {
        Manager { release, ..manager(vec![device("a", &[])]) }
    }

    #[tokio::test]
    async fn up_to_1_36_the_end_of_an_old_stream_closes_the_newer_plugin() {
        let mut manager = manager_of(Release::UpTo1_36);
        let (first, first_token) = register(&mut manager, "one.sock");
        let (_, second_token) = register(&mut manager, "two.sock");
        manager.stream_ended(&first, Instant::now());
        assert!(second_token.is_cancelled() && !first_token.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 0));
        assert!(manager.endpoints[GPU].stopped_at.is_some());
    }

    #[tokio::test]
    async fn from_1_37_the_end_of_an_old_stream_leaves_the_newer_plugin_alone() {
        let mut manager = manager_of(Release::From1_37);
        let (first, _) = register(&mut manager, "one.sock");
        let (second, second_token) = register(&mut manager, "two.sock");
        manager.stream_ended(&first, Instant::now());
        assert!(!second_token.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 1));
        manager.stream_ended(&second, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 0));
    }

    #[tokio::test]
    async fn a_newer_plugin_that_still_dials_stays_open_and_its_own_end_changes_nothing() {
        let mut manager = manager_of(Release::UpTo1_36);
        let (first, _) = register(&mut manager, "one.sock");
        let second = manager.add_client(GPU, Path::new("two.sock"));
        manager.stream_ended(&first, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 0), "the old endpoint is stopped");

        let close = CancellationToken::new();
        manager.client_dialled(&second, close.clone());
        manager.client_connected(&second, endpoint("two.sock"));
        manager.set_devices(GPU, vec![device("a", &[])]);
        assert_eq!(manager.counts()[GPU], (1, 1));
        manager.stream_ended(&second, Instant::now());
        assert!(!close.is_cancelled());
        assert_eq!(manager.counts()[GPU], (1, 1));
    }

    #[tokio::test]
    async fn of_two_dialling_plugins_a_stream_end_closes_only_the_newer_one() {
        let mut manager = manager_of(Release::UpTo1_36);
        let first = manager.add_client(GPU, Path::new("one.sock"));
        let second = manager.add_client(GPU, Path::new("two.sock"));
        let [first_token, second_token] = [&first, &second].map(|client| {
            let close = CancellationToken::new();
            manager.client_dialled(client, close.clone());
            close
        });
        manager.stream_ended(&first, Instant::now());
        assert!(second_token.is_cancelled() && !first_token.is_cancelled());
    }

    #[tokio::test]
    async fn after_a_failed_registration_the_end_of_the_older_stream_changes_nothing() {
        let mut manager = manager_of(Release::UpTo1_36);
        let (first, _) = register(&mut manager, "one.sock");
        let failing = manager.add_client(GPU, Path::new("two.sock"));
        manager.client_failed(&failing);
        manager.stream_ended(&first, Instant::now());
        assert_eq!(manager.counts()[GPU], (1, 1));
    }

    #[tokio::test]
    async fn a_resource_expires_after_the_grace_period_and_stays_on_the_node_with_capacity_0() {
        let mut manager = manager_of(Release::UpTo1_36);
        let (client, _) = register(&mut manager, "one.sock");
        let stopped = Instant::now();
        let grace = Duration::from_secs(300);
        manager.stream_ended(&client, stopped);
        assert!(manager.remove_expired(stopped + grace, grace).is_empty());
        assert_eq!(manager.unhealthy[GPU], ids("a"));
        assert_eq!(
            manager.remove_expired(stopped + grace + Duration::from_millis(1), grace),
            [GPU]
        );
        assert_eq!(manager.counts()[GPU], (0, 0));
        assert!(!manager.is_known(GPU) && manager.next_expiry(grace).is_none());
    }
}

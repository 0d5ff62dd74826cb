//! The kubelet's device manager: serial, so that it never allocates a device twice by itself, with a list of devices
//! that may be outdated.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use windlass_kubelet_api::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, device_plugin_client::DevicePluginClient,
};
use windlass_testkit::GPU;

use super::{
    agent::CHECKPOINT_DELAY,
    node::{DevicePod, Node, dial, is_connection_error},
};
use crate::claims::rng::Rng;

/// Admits and ends pods with devices.
pub(super) struct DeviceManager {
    node: Arc<Node>,
    rng: Rng,
    created: usize,
}

/// Maximum number of simultaneous pods.
const MAX_PODS: usize = 3;

/// Minimum lifetime of a pod. An allocation that no checkpoint lists is kept for half a minute.
const MIN_LIFETIME: Duration = Duration::from_millis(50);

/// Maximum idle time: claims have to find free devices too.
const MAX_PAUSE_MS: usize = 60;

/// Maximum delay of the checkpoint, if the machine is fast enough.
const MAX_DELAY_MS: usize = 40;

// === impl DeviceManager ===

impl DeviceManager {
    pub(super) fn new(node: Arc<Node>, rng: Rng) -> Self {
        Self { node, rng, created: 0 }
    }

    pub(super) async fn run(mut self) {
        while !self.node.is_over() {
            let count = self.node.facts().pods.len();
            match self.rng.below(100) {
                0..45 if count < MAX_PODS => self.admit().await,
                45.. if count > 0 => self.end_random_pod(MIN_LIFETIME),
                _ => {}
            }
            sleep(Duration::from_millis(self.rng.below(MAX_PAUSE_MS) as u64)).await;
        }
        while !self.node.facts().pods.is_empty() {
            self.end_random_pod(Duration::ZERO);
        }
        self.node.write_devices();
    }

    /// Devices that are healthy and free by the latest list, now and then by an outdated one.
    fn choose(&mut self) -> Vec<String> {
        let facts = self.node.facts();
        let list = facts.lists.get(GPU).cloned().unwrap_or_default();
        let is_allocated =
            |id: &String| facts.pods.values().any(|pod| pod.devices.iter().any(|it| it == id));
        let mut free: Vec<_> = list.into_iter().filter(|(id, _)| !is_allocated(id)).collect();
        drop(facts);
        free.retain(|(_, is_healthy)| *is_healthy || self.rng.below(7) == 0);
        let count = 1 + usize::from(self.rng.below(4) == 0);
        let mut chosen = Vec::new();
        while chosen.len() < count && !free.is_empty() {
            chosen.push(free.swap_remove(self.rng.below(free.len())).0);
        }
        chosen
    }

    async fn admit(&mut self) {
        let devices_ids = self.choose();
        if devices_ids.is_empty() {
            return;
        }
        self.created += 1;
        let uid = format!("p{}", self.created);
        let call = self.node.calls.read().await;
        let Some(plugin) = dial(self.node.plugin_socket()).await else {
            return self.node.connection_lost().await;
        };
        self.node.facts().owners.log(&format!("Allocate {devices_ids:?} for {uid}"));
        let container = ContainerAllocateRequest { devices_ids: devices_ids.clone() };
        let request = AllocateRequest { container_requests: vec![container] };
        let answer = DevicePluginClient::new(plugin).allocate(request).await;
        let answered = Instant::now();
        match answer {
            Err(status) if is_connection_error(&status) => {
                return self.node.connection_lost().await;
            }
            Err(_) => return self.node.step("Allocate refused"),
            Ok(_) => self.node.step("Allocate answered"),
        }
        drop(call);
        if self.rng.below(10) == 0 {
            sleep(Duration::from_millis(self.rng.below(MAX_DELAY_MS) as u64)).await;
        }
        let is_init = self.rng.below(3) == 0;
        let pod = DevicePod { devices: devices_ids.clone(), is_init, since: Instant::now() };
        self.node.facts().pods.insert(uid.clone(), pod);
        self.node.write_devices();
        // The container starts once the checkpoint is written, unless the agent may have read it before.
        if answered.elapsed() > CHECKPOINT_DELAY * 2 / 3 {
            self.node.count("pods that a busy machine recorded too late");
            self.node.facts().pods.remove(&uid);
            return self.node.write_devices();
        }
        let mut facts = self.node.facts();
        for id in &devices_ids {
            facts.owners.add(id, &uid);
        }
    }

    /// Ends a pod's containers. The checkpoint follows, at the latest with the next pod.
    fn end_random_pod(&mut self, min_lifetime: Duration) {
        let mut facts = self.node.facts();
        let expired = facts.pods.iter().filter(|(_, pod)| pod.since.elapsed() >= min_lifetime);
        let mut expired: Vec<_> = expired.map(|(uid, _)| uid.clone()).collect();
        if expired.is_empty() {
            return;
        }
        let uid = expired.swap_remove(self.rng.below(expired.len()));
        facts.pods.remove(&uid);
        facts.owners.release_all(&uid);
        drop(facts);
        self.node.step("pods with devices ended");
        if self.rng.below(4) > 0 {
            self.node.write_devices();
        }
    }
}

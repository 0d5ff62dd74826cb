//! The kubelet's concurrent workers for pods with claims, and a scheduler with an outdated view of the node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tonic::{Response, Status};
use windlass_kubelet_api::dra::{
    checkpoint,
    v1::{
        Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
        dra_plugin_client::DraPluginClient,
    },
};
use windlass_testkit::{GPU, TIMEOUT};

use super::node::{Node, is_connection_error};
use crate::claims::{objects::NAMESPACE, rng::Rng, world::DRIVER};

/// Prepares and releases claims through the driver.
pub(super) struct Worker {
    node: Arc<Node>,
    number: usize,
    rng: Rng,
    created: usize,
    /// Devices by claim.
    claims: BTreeMap<String, Vec<String>>,
}

/// Number of workers.
pub(super) const WORKERS: usize = 5;

/// Maximum number of claims per worker.
const MAX_CLAIMS: usize = 3;

/// Longest wait of a caller that cancels its call, in milliseconds.
const LONGEST_MS: usize = 50;

/// Timeout of the other calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Worker ===

impl Worker {
    pub(super) fn new(node: Arc<Node>, number: usize, rng: Rng) -> Self {
        Self { node, number, rng, created: 0, claims: BTreeMap::new() }
    }

    pub(super) async fn run(mut self) {
        while !self.node.is_over() {
            match self.rng.below(100) {
                0..40 if self.claims.len() < MAX_CLAIMS => self.schedule().await,
                0..75 if !self.claims.is_empty() => self.prepare().await,
                75.. if !self.claims.is_empty() => self.end_random_claim().await,
                _ => {}
            }
        }
        while !self.claims.is_empty() {
            self.end_random_claim().await;
        }
    }

    fn random_claim(&mut self) -> String {
        let index = self.rng.below(self.claims.len());
        self.claims.keys().nth(index).expect("one of them").clone()
    }

    /// Allocates devices to a new claim, if any are free.
    async fn schedule(&mut self) {
        let uid = format!("w{}-{}", self.number, self.created);
        self.created += 1;
        let devices = self.choose(&uid);
        if devices.is_empty() {
            return sleep(Duration::from_millis(1)).await;
        }
        self.node.allocate(&uid, &devices);
        self.claims.insert(uid, devices);
    }

    /// Devices that no other claim has by the scheduler's allocations, which ignore containers and are sometimes
    /// outdated.
    fn choose(&mut self, uid: &str) -> Vec<String> {
        let is_outdated = self.rng.below(50) == 0;
        let count = 1 + usize::from(self.rng.below(4) == 0);
        let mut facts = self.node.facts();
        let listed = facts.lists.get(GPU).map(|list| list.keys().cloned().collect());
        let mut free: Vec<String> = listed.unwrap_or_default();
        free.retain(|id| is_outdated || !facts.scheduled.contains_key(id));
        let mut devices = Vec::new();
        while devices.len() < count && !free.is_empty() {
            devices.push(free.swap_remove(self.rng.below(free.len())));
        }
        for id in &devices {
            facts.scheduled.insert(id.clone(), uid.to_owned());
        }
        devices
    }

    fn call_timeout(&mut self) -> Duration {
        match self.rng.below(4) {
            0 => Duration::from_millis(self.rng.below(LONGEST_MS) as u64),
            _ => CALL_TIMEOUT,
        }
    }

    async fn prepare(&mut self) {
        let uids: BTreeSet<_> = match self.rng.below(8) {
            0 => self.claims.keys().cloned().collect(),
            _ => [self.random_claim()].into(),
        };
        let (call_timeout, node) = (self.call_timeout(), Arc::clone(&self.node));
        let _call = node.calls.read().await;
        node.add_claims(&uids);
        let Some(driver) = node.driver(&mut self.rng).await else {
            return node.connection_lost().await;
        };
        node.facts().owners.log(&format!("Prepare {uids:?}"));
        let claims = uids.iter().map(|uid| claim(uid)).collect();
        let mut driver = DraPluginClient::new(driver);
        let call = driver.node_prepare_resources(NodePrepareResourcesRequest { claims });
        let Some(answer) = self.answer(timeout(call_timeout, call).await).await else { return };
        for (uid, prepared) in answer.claims {
            if prepared.error.is_empty() {
                self.record_prepared(&uid, prepared.devices);
                node.step("claims prepared");
            } else {
                node.facts().owners.log(&format!("{uid} refused: {}", prepared.error));
                node.step("claims refused");
            }
        }
    }

    /// Writes a prepared claim to the kubelet's checkpoint; its containers start.
    fn record_prepared(&self, uid: &str, devices: Vec<Device>) {
        let names: BTreeSet<_> = devices.iter().map(|it| it.device_name.clone()).collect();
        let chosen = self.claims[uid].iter().map(|id| id.to_lowercase());
        assert_eq!(
            names,
            chosen.collect::<BTreeSet<_>>(),
            "{uid} has the devices that the scheduler chose"
        );
        let recorded = devices.into_iter().map(|it| checkpoint::Device {
            pool_name: it.pool_name,
            device_name: it.device_name,
            request_names: Some(it.request_names),
            cdi_device_ids: Some(it.cdi_device_ids),
            ..checkpoint::Device::default()
        });
        let mut facts = self.node.facts();
        let state = facts.claims.get_mut(uid).expect("added before it was prepared");
        let driver = state.drivers.get_mut(DRIVER).expect("the one driver");
        driver.devices = Some(recorded.collect());
        self.node.write_claims(&facts);
        self.claims[uid].iter().for_each(|id| facts.owners.add(id, uid));
    }

    /// Ends containers, and releases their claim. Some objects were deleted by force before, so that the scheduler has
    /// allocated their devices again.
    async fn end_random_claim(&mut self) {
        let uid = self.random_claim();
        if self.rng.below(3) == 0 {
            self.node.delete(&uid);
            self.node.count("claims deleted by force");
            if self.rng.below(2) == 0 {
                self.prepare().await;
            }
        }
        self.node.facts().owners.release_all(&uid);
        let start = Instant::now();
        while let Err(error) = self.release(&uid).await {
            assert!(start.elapsed() < TIMEOUT * 2, "{uid} cannot be released: {error}");
        }
        self.node.remove_claim(&uid);
        self.node.delete(&uid);
        self.claims.remove(&uid);
    }

    async fn release(&mut self, uid: &str) -> Result<(), String> {
        let (call_timeout, node) = (self.call_timeout(), Arc::clone(&self.node));
        let _call = node.calls.read().await;
        let Some(driver) = node.driver(&mut self.rng).await else {
            node.connection_lost().await;
            return Err("the driver does not serve".to_owned());
        };
        let claims = vec![claim(uid)];
        let mut driver = DraPluginClient::new(driver);
        let call = driver.node_unprepare_resources(NodeUnprepareResourcesRequest { claims });
        let answer = self.answer(timeout(call_timeout, call).await).await;
        let answer = answer.ok_or_else(|| "no answer".to_owned())?;
        match answer.claims[uid].error.as_str() {
            "" => {
                node.step("claims released");
                Ok(())
            }
            error => {
                node.step("claims not released yet");
                sleep(Duration::from_millis(2)).await;
                Err(error.to_owned())
            }
        }
    }

    /// The answer, unless the caller cancelled the call or the connection broke.
    async fn answer<T, E>(&self, answer: Result<Result<Response<T>, Status>, E>) -> Option<T> {
        match answer {
            Ok(Ok(answer)) => return Some(answer.into_inner()),
            Ok(Err(status)) if is_connection_error(&status) => self.node.connection_lost().await,
            Ok(Err(status)) => panic!("failures are reported for each claim: {status}"),
            Err(_) => self.node.step("calls cancelled"),
        }
        None
    }
}

fn claim(uid: &str) -> Claim {
    Claim { namespace: NAMESPACE.to_owned(), name: uid.to_owned(), uid: uid.to_owned() }
}

//! The DRA driver as a task of the agent: it recovers the claims of an earlier agent, then prepares claims and serves
//! the kubelet.

use std::sync::Arc;

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::SharedLedger;
use windlass_cluster::{ClaimStatuses, Claims, Client};
use windlass_config::{DriverName, HostPaths, KubeletLimits, Policy};
use windlass_discovery::mig::MigHandle;
use windlass_host::{blocking, causes, clock::Clock, state_file::Versioned};
use windlass_lifecycle::{
    cleanup::CleanupHandle,
    mps::{MpsFolders, MpsStates},
};
use windlass_resources::NodeState;

use super::{
    document::ClaimDocuments,
    excess::MemoryExcesses,
    health::HealthPublisher,
    kubelet_checkpoint::KubeletCheckpoint,
    orphans,
    prepare::{Environment, Preparer},
    queue::ClaimQueue,
    record::{ClaimFile, Records},
    recovered::RecoveredClaims,
    registrar::RegistrationState,
    serve::{Server, Sockets},
    service::Service,
    status::{Failures, FailuresByUid, StatusWriter},
    unrecorded_claims::UnrecordedClaimSearch,
};
use crate::metrics::ClaimMetrics;

/// The DRA driver.
#[derive(Debug)]
pub struct Driver {
    environment: Environment,
    file: ClaimFile,
    recovered: Option<RecoveredClaims>,
    unrecorded_claims: UnrecordedClaimSearch,
    sockets: Sockets,
    clock: Clock,
    policy: watch::Receiver<Arc<Policy>>,
    registration: watch::Sender<RegistrationState>,
    statuses: Option<ClaimStatuses>,
    excesses: watch::Receiver<Arc<MemoryExcesses>>,
    limits: KubeletLimits,
}

/// Inputs of the driver.
#[derive(Debug)]
pub struct Deps {
    /// Clock of timestamps in statuses.
    pub clock: Clock,
    /// Client of the API server; without it no claim can be read.
    pub cluster: Option<Client>,
    /// Ledger of allocated devices.
    pub ledger: SharedLedger,
    /// Claims of an earlier agent.
    pub recovered: RecoveredClaims,
    /// Cleanup of devices between tenants.
    pub cleanup: CleanupHandle,
    /// Metrics of claims.
    pub metrics: ClaimMetrics,
    /// States of the MPS daemons.
    pub daemons: watch::Receiver<Arc<MpsStates>>,
    /// Worker for MIG instances.
    pub partitions: MigHandle,
    /// Policy in force.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Snapshots of the node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// Folders of the MPS daemons.
    pub mps: MpsFolders,
    /// Claims that use more memory of a GPU than their share.
    pub excesses: watch::Receiver<Arc<MemoryExcesses>>,
}

/// Restores the claims of an earlier agent in the ledger: the kubelet may call the device plugin before the driver
/// runs. An unreadable state file is reported later by the driver; claims in the kubelet's checkpoint are held in any
/// case. Blocks on the read of a small file.
pub fn restore_claims(
    places: &HostPaths,
    driver: &DriverName,
    ledger: &SharedLedger,
) -> RecoveredClaims {
    let file = ClaimFile::new(places);
    let recovered =
        RecoveredClaims::read(&file, &KubeletCheckpoint::new(&places.kubelet_dir, driver));
    ClaimDocuments::new(places).remove_temporary_files();
    for record in recovered.claims().values() {
        ledger.restore_claim(&record.claim, record.uses());
    }
    if recovered.is_absent() && unrecorded_claim_search(places, driver, ledger).is_ruled_out() {
        return recovered;
    }
    if recovered.is_unreadable() {
        ledger.mark_claims_unknown();
    } else if recovered.is_from_kubelet_only() {
        ledger.mark_claims_from_kubelet();
    }
    recovered
}

fn unrecorded_claim_search(
    places: &HostPaths,
    driver: &DriverName,
    ledger: &SharedLedger,
) -> UnrecordedClaimSearch {
    UnrecordedClaimSearch {
        documents: ClaimDocuments::new(places),
        kubelet_dir: places.kubelet_dir.clone(),
        driver: driver.clone(),
        ledger: ledger.clone(),
    }
}

// === impl Driver ===

impl Driver {
    /// Builds the driver. Reads nothing yet.
    pub fn new(places: &HostPaths, driver: &DriverName, limits: KubeletLimits, deps: Deps) -> Self {
        let environment = Environment {
            node: deps
                .cluster
                .as_ref()
                .map(|cluster| cluster.node().to_owned())
                .unwrap_or_default(),
            documents: ClaimDocuments::new(places),
            kubelet_checkpoint: KubeletCheckpoint::new(&places.kubelet_dir, driver),
            claims: deps.cluster.clone().map(Claims::new),
            driver: driver.clone(),
            roots: places.roots(),
            state: deps.state,
            ledger: deps.ledger.clone(),
            partitions: deps.partitions,
            cleanup: deps.cleanup,
            metrics: deps.metrics,
            mps: deps.mps,
            daemons: deps.daemons,
        };
        Self {
            environment,
            file: ClaimFile::new(places),
            recovered: Some(deps.recovered),
            unrecorded_claims: unrecorded_claim_search(places, driver, &deps.ledger),
            sockets: Sockets::new(&places.kubelet_dir, driver),
            clock: deps.clock,
            policy: deps.policy,
            registration: watch::Sender::default(),
            statuses: deps.cluster.map(ClaimStatuses::new),
            excesses: deps.excesses,
            limits,
        }
    }

    /// Prepares claims and serves the kubelet until stopped. Serving starts once the prepared claims are known.
    pub async fn run(self, stop: CancellationToken) {
        let (registration, metrics) =
            (self.registration.subscribe(), self.environment.metrics.clone());
        tokio::select! {
            () = self.recover_and_serve(stop) => {}
            () = publish_registration(registration, metrics) => {}
        }
    }

    async fn recover_and_serve(mut self, stop: CancellationToken) {
        let (records, is_absent) = tokio::select! {
            () = stop.cancelled() => return,
            recovered = self.recover() => recovered,
        };
        let (journal, writer) = self.file.journal();
        // Rewrites records of another version, of another boot, or from the kubelet's checkpoint in the current format.
        journal.write(records.clone());
        let (queue, requests) = ClaimQueue::new(self.limits.claim_deadline);
        let serving = self.server(queue, journal.watch()).run(stop.clone());
        let failures = Failures::default();
        let statuses = self.write_statuses(journal.watch(), failures.watch(), stop);
        let orphans = orphans::run(self.environment.clone(), journal.watch());
        let KubeletLimits { check_interval, claim_wait, .. } = self.limits;
        let ledger = self.environment.ledger.clone();
        let preparer = Preparer::new(
            self.environment,
            requests,
            check_interval,
            claim_wait,
            records,
            failures,
            journal,
        );
        let (unrecorded_claims, interval) = (self.unrecorded_claims, self.limits.check_interval);
        let mark_claims_known = async move {
            if is_absent && !ledger.watch().borrow().knows_claims() {
                unrecorded_claims.wait_until_gone(interval).await;
            }
            ledger.mark_claims_known();
        };
        let work = async {
            tokio::join!(writer.run(), preparer.run(), serving, statuses, mark_claims_known)
        };
        tokio::select! {
            _ = work => {}
            () = orphans => {}
        }
    }

    /// Writes the status of claims, if there is an API server.
    fn write_statuses(
        &mut self,
        records: watch::Receiver<Versioned<Records>>,
        failures: watch::Receiver<FailuresByUid>,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let writer = self.statuses.take().map(|statuses| StatusWriter {
            driver: self.environment.driver.clone(),
            clock: self.clock,
            statuses,
            records,
            state: self.environment.state.clone(),
            failures,
            excesses: self.excesses.clone(),
        });
        async move {
            if let Some(writer) = writer {
                writer.run(stop).await;
            }
        }
    }

    /// Recovers the records of an earlier agent; the flag is true if there was no state file. An unusable file is read
    /// again until it is repaired.
    async fn recover(&mut self) -> (Records, bool) {
        let mut logged = None;
        loop {
            let (file, environment, recovered) =
                (self.file.clone(), self.environment.clone(), self.recovered.take());
            let offer = self.policy.borrow().dra.offer;
            let read = move || {
                let recovered = recovered.unwrap_or_else(|| {
                    RecoveredClaims::read(&file, &environment.kubelet_checkpoint)
                });
                let is_absent = recovered.is_absent();
                let records = recovered.restore(&file, &environment.documents, offer);
                records.map(|records| (records, is_absent))
            };
            let message = match blocking(read).await {
                Ok(recovered) => return recovered,
                Err(unreadable) => causes(&unreadable),
            };
            if logged.replace(message.clone()).as_ref() != Some(&message) {
                tracing::error!(
                    error = message,
                    "DRA driver not serving: claims of an earlier agent unknown"
                );
                self.registration.send_replace(RegistrationState::Failing(message));
            }
            tracing::trace!("devices of claims are still unknown");
            sleep(self.limits.check_interval).await;
        }
    }

    fn server(&self, queue: ClaimQueue, records: watch::Receiver<Versioned<Records>>) -> Server {
        let driver = self.environment.driver.clone();
        let health = HealthPublisher {
            node: self.environment.node.clone(),
            driver: driver.clone(),
            clock: self.clock,
            state: self.environment.state.clone(),
            records: records.clone(),
        };
        Server {
            driver,
            sockets: self.sockets.clone(),
            service: Service { queue, metrics: self.environment.metrics.clone() },
            health,
            policy: self.policy.clone(),
            records,
            kubelet_checkpoint: self.environment.kubelet_checkpoint.clone(),
            registration: self.registration.clone(),
            check_interval: self.limits.check_interval,
        }
    }
}

/// Publishes the state of the registration as a metric, until dropped.
async fn publish_registration(
    mut state: watch::Receiver<RegistrationState>,
    metrics: ClaimMetrics,
) {
    loop {
        metrics.set_registration(&state.borrow_and_update());
        windlass_host::watch::changed(&mut state).await;
    }
}

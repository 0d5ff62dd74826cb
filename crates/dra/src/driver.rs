//! The driver as a part of the agent: takes up what an earlier agent left, then prepares and serves.

use std::sync::Arc;

use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::LedgerDesk;
use windlass_cluster::{ClaimStatuses, Claims, Client};
use windlass_config::{DriverName, Places, Policy, SessionLimits};
use windlass_discovery::mig::PartitionDesk;
use windlass_host::{causes, clock::Clock, state_file::Versioned};
use windlass_lifecycle::{
    cleanup::HandoverDesk,
    mps::{MpsPlaces, MpsStates},
};
use windlass_resources::NodeState;

use super::{
    desk::ClaimDesk,
    document::ClaimDocuments,
    doubt::Traces,
    health::HealthList,
    kubelet_record::KubeletRecord,
    left::Left,
    leftovers,
    prepare::{Ground, Preparer},
    record::{ClaimFile, Records},
    registrar::Standing,
    serve::{Serving, Sockets},
    service::Service,
    status::{Teller, TroubleByUid, Troubles},
};
use crate::metrics::ClaimMetrics;

/// Prepares and serves claims.
#[derive(Debug)]
pub struct Driver {
    ground: Ground,
    file: ClaimFile,
    left: Option<Left>,
    traces: Traces,
    sockets: Sockets,
    clock: Clock,
    policy: watch::Receiver<Arc<Policy>>,
    standing: watch::Sender<Standing>,
    statuses: Option<ClaimStatuses>,
    limits: SessionLimits,
}

/// What the driver is told by others.
#[derive(Debug)]
pub struct Surroundings {
    /// The time.
    pub clock: Clock,
    /// The way to the API server, without which no claim can be read.
    pub cluster: Option<Client>,
    /// Who holds what.
    pub ledger: LedgerDesk,
    /// What an earlier agent left.
    pub left: Left,
    /// Where claims wait for clean devices.
    pub handovers: HandoverDesk,
    /// What is counted.
    pub metrics: ClaimMetrics,
    /// How MPS daemons fare.
    pub daemons: watch::Receiver<Arc<MpsStates>>,
    /// Where MIG instances are made and removed.
    pub partitions: PartitionDesk,
    /// What is wanted.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// Where MPS daemons have their pipes.
    pub mps: MpsPlaces,
}

/// What an earlier agent gave to claims is held from now on: the kubelet may ask for it through the device
/// plugin before the driver runs. A record that cannot be read is told of when it does; what the kubelet says
/// is held in any case. Blocks for as long as a small file takes.
pub fn restore(places: &Places, driver: &DriverName, ledger: &LedgerDesk) -> Left {
    let file = ClaimFile::new(places);
    let left = Left::read(&file, &KubeletRecord::new(&places.kubelet_dir, driver));
    ClaimDocuments::new(&places.cdi_dir).remove_drafts();
    for entry in left.held().values() {
        ledger.restore_claim(&entry.claim, entry.uses());
    }
    if left.is_absent() && traces(places, driver, ledger).is_out_of_the_question() {
        return left;
    }
    if left.is_silent() {
        ledger.forget_claims();
    } else if left.is_hearsay() {
        ledger.hear_of_claims();
    }
    left
}

fn traces(places: &Places, driver: &DriverName, ledger: &LedgerDesk) -> Traces {
    Traces {
        documents: ClaimDocuments::new(&places.cdi_dir),
        kubelet_dir: places.kubelet_dir.clone(),
        driver: driver.clone(),
        ledger: ledger.clone(),
    }
}

// === impl Driver ===

impl Driver {
    /// Builds the driver; nothing is read yet.
    pub fn new(
        places: &Places,
        driver: &DriverName,
        limits: SessionLimits,
        surroundings: Surroundings,
    ) -> Self {
        let Surroundings {
            clock,
            cluster,
            ledger,
            left,
            handovers,
            metrics,
            daemons,
            partitions,
            policy,
            state,
            mps,
        } = surroundings;
        let roots = places.roots();
        let traces = traces(places, driver, &ledger);
        let file = ClaimFile::new(places);
        let ground = Ground {
            node: cluster.as_ref().map(|it| it.node().to_owned()).unwrap_or_default(),
            documents: ClaimDocuments::new(&places.cdi_dir),
            kubelet_record: KubeletRecord::new(&places.kubelet_dir, driver),
            claims: cluster.clone().map(Claims::new),
            driver: driver.clone(),
            roots,
            state,
            ledger,
            partitions,
            handovers,
            metrics,
            mps,
            daemons,
        };
        let sockets = Sockets::new(&places.kubelet_dir, driver);
        let standing = watch::Sender::default();
        let statuses = cluster.map(ClaimStatuses::new);
        let left = Some(left);
        Self { ground, file, left, traces, sockets, clock, policy, standing, statuses, limits }
    }

    /// Prepares and serves until stopped. Nothing is served before it is known what is prepared.
    pub async fn run(self, stop: CancellationToken) {
        let (standing, metrics) = (self.standing.subscribe(), self.ground.metrics.clone());
        tokio::select! {
            () = self.live(stop) => {}
            () = show(standing, metrics) => {}
        }
    }

    async fn live(mut self, stop: CancellationToken) {
        let (records, is_absent) = tokio::select! {
            () = stop.cancelled() => return,
            recovered = self.recover() => recovered,
        };
        let (journal, writer) = self.file.journal();
        // What an agent of another version or boot wrote, or the kubelet alone, is written as this one does.
        journal.write(records.clone());
        let (desk, requests) = ClaimDesk::new(self.limits.claim_deadline);
        let serving = self.serving(desk, journal.watch()).run(stop.clone());
        let troubles = Troubles::default();
        let telling = self.telling(journal.watch(), troubles.watch(), stop);
        let leftovers = leftovers::keep(self.ground.clone(), journal.watch());
        let asked = (requests, self.limits.look_interval, self.limits.claim_patience);
        let ledger = self.ground.ledger.clone();
        let preparer = Preparer::new(self.ground, asked, records, troubles, journal);
        let (traces, look) = (self.traces, self.limits.look_interval);
        let recalling = async move {
            let is_in_doubt = is_absent && !ledger.watch().borrow().knows_claims();
            if is_in_doubt {
                traces.vanish(look).await;
            }
            ledger.recall_claims();
        };
        tokio::select! {
            _ = async { tokio::join!(writer.run(), preparer.run(), serving, telling, recalling) } => {}
            () = leftovers => {}
        }
    }

    /// Tells how claims' devices fare, where there is somebody to tell.
    fn telling(
        &mut self,
        records: watch::Receiver<Versioned<Records>>,
        troubles: watch::Receiver<TroubleByUid>,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (state, driver) = (self.ground.state.clone(), self.ground.driver.clone());
        let clock = self.clock;
        let teller = self.statuses.take().map(|statuses| Teller {
            driver,
            clock,
            statuses,
            records,
            state,
            troubles,
        });
        async move {
            if let Some(teller) = teller {
                teller.run(stop).await;
            }
        }
    }

    /// What is to go on of what an earlier agent left, and whether there was no record of it. One that cannot be used
    /// is waited for to be mended.
    async fn recover(&mut self) -> (Records, bool) {
        let mut said = None;
        loop {
            let (file, ground, left) = (self.file.clone(), self.ground.clone(), self.left.take());
            let offer = self.policy.borrow().dra.offer;
            let read = move || {
                let left = left.unwrap_or_else(|| Left::read(&file, &ground.kubelet_record));
                let is_absent = left.is_absent();
                let records = left.taken_up(&file, &ground.documents, offer);
                records.map(|records| (records, is_absent))
            };
            let taken_up = spawn_blocking(read).await;
            let why = match taken_up.expect("reading neither panics nor is cancelled") {
                Ok(recovered) => return recovered,
                Err(unreadable) => causes(&unreadable),
            };
            if said.as_ref() != Some(&why) {
                tracing::error!(error = why, "the DRA driver does not serve");
                self.standing.send_replace(Standing::Failing(why.clone()));
                said = Some(why);
            }
            tracing::trace!("what claims have is still unknown");
            sleep(self.limits.look_interval).await;
        }
    }

    fn serving(&self, desk: ClaimDesk, records: watch::Receiver<Versioned<Records>>) -> Serving {
        let driver = self.ground.driver.clone();
        let health = HealthList {
            node: self.ground.node.clone(),
            driver: driver.clone(),
            clock: self.clock,
            state: self.ground.state.clone(),
            records: records.clone(),
        };
        Serving {
            driver,
            sockets: self.sockets.clone(),
            service: Service { desk, metrics: self.ground.metrics.clone() },
            health,
            policy: self.policy.clone(),
            records,
            kubelet_record: self.ground.kubelet_record.clone(),
            standing: self.standing.clone(),
            look_interval: self.limits.look_interval,
        }
    }
}

/// Shows how the driver stands with the kubelet, for as long as it is waited for.
async fn show(mut standing: watch::Receiver<Standing>, metrics: ClaimMetrics) {
    loop {
        metrics.stands(&standing.borrow_and_update());
        if standing.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

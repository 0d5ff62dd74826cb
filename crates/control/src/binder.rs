//! Binding of a pod: chooses its devices, and writes node and devices in one request.
//!
//! The Binding carries the placement in its annotations. The API server sets them together with `nodeName` in one
//! update. It refuses a Binding for another UID, for a deleted pod and for a bound pod.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams, core::Status};
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::annotation::PodPlacement;
use windlass_host::{clock::Clock, shared::Shared};

use crate::{
    access::REQUEST_TIMEOUT,
    facts::{GpuRequest, PodFacts, ShareScheme},
    fence::{Fence, FenceError},
    gpushare,
    index::{Arrival, GangWait, Index, PlacementDecision, Refusal},
    metrics::Metrics,
    wire::BindArgs,
};

pub(crate) struct Binder {
    client: kube::Client,
    index: Arc<Shared<Index>>,
    fence: Arc<Fence>,
    clock: Clock,
    metrics: Arc<Metrics>,
    limits: WaitLimits,
    writes: Semaphore,
    tasks: Shared<JoinSet<()>>,
}

/// Bounds of the wait for the other members of a gang.
pub(crate) struct WaitLimits {
    /// Time within which all members must arrive.
    pub(crate) gang_wait: Duration,
    /// Cancels every wait.
    pub(crate) stop: CancellationToken,
}

/// A bind that failed before or during the write of its Binding.
enum BindFailure {
    BeforeWrite(BindError),
    DuringWrite(BindError),
}

/// Outcome of a write without an answer, or with an error as the answer.
enum WriteOutcome {
    /// The pod is bound to the node of this write.
    Bound,
    /// The write has no effect.
    Unbound,
    /// The write may still take effect.
    Unknown,
}

/// Time after which a lost write can no longer take effect: the API server's `--request-timeout` (60 s) has ended it.
const LOST_WRITE_TIMEOUT: Duration = Duration::from_secs(65);
/// Maximum number of concurrent Binding writes for gang members.
const MAX_WRITES: usize = 32;
/// Interval of Lease checks while a gang waits. Each check renews the Lease if needed. The interval is shorter than the
/// validity that a check leaves, so the Lease does not expire between two checks.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(4);
/// Pause between reads of a pod whose write has an unknown outcome.
const REREAD_INTERVAL: Duration = Duration::from_secs(2);

/// Reason why a pod is not bound. kube-scheduler retries.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The watches have not read all objects yet.
    #[error("not ready: the cluster's objects have not been read yet")]
    NotReady,
    /// The pod was deleted or has ended, or another pod has its name.
    #[error("pod {0} is gone")]
    PodGone(String),
    /// The node can no longer serve the pod.
    #[error("node {node} can no longer serve the pod")]
    Refused {
        /// The node.
        node: String,
        /// The reason.
        source: Refusal,
    },
    /// Other members of the pod's gang did not arrive in time.
    #[error(
        "gang {gang} was not complete within {limit:?}: a pod is missing, or fits no node that kube-scheduler offers"
    )]
    GangTimedOut {
        /// Name of the gang.
        gang: String,
        /// Time within which all members had to arrive.
        limit: Duration,
    },
    /// The pod's gang was given up while the pod waited for it.
    #[error(
        "gang {0} was given up: not all of its pods arrived, or this replica no longer binds. All are retried"
    )]
    GangGivenUp(String),
    /// This replica may not bind.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The API server refused.
    #[error("the API server refused")]
    Kube(#[source] Box<kube::Error>),
    /// The extender is shutting down.
    #[error("the extender is shutting down: try again")]
    ShuttingDown,
    /// The API server did not answer.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    RequestTimedOut,
}

// === impl BindError ===

impl BindError {
    /// True for a 4xx status: the write had no effect. After a 5xx status it may have had one.
    fn is_refusal(&self) -> bool {
        let Self::Kube(error) = self else { return false };
        matches!(&**error, kube::Error::Api(status) if (400..500).contains(&status.code))
    }
}

// === impl Binder ===

impl Binder {
    pub(crate) fn new(
        client: kube::Client,
        index: Arc<Shared<Index>>,
        fence: Arc<Fence>,
        clock: Clock,
        metrics: Arc<Metrics>,
        limits: WaitLimits,
    ) -> Self {
        let (writes, tasks) = (Semaphore::new(MAX_WRITES), Shared::default());
        Self { client, index, fence, clock, metrics, limits, writes, tasks }
    }

    /// Binds the pod in its own task, so that the bind completes even if the client disconnects.
    pub(crate) async fn bind(self: &Arc<Self>, args: BindArgs) -> Result<(), BindError> {
        let (reply, answer) = oneshot::channel();
        let binder = self.clone();
        self.tasks.with_lock(|tasks| {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { binder.bind_and_confirm(&args, reply).await });
        });
        answer.await.unwrap_or(Err(BindError::ShuttingDown))
    }

    /// Waits up to `limit` for running binds, then aborts the others. Returns true if none was aborted.
    pub(crate) async fn drain(&self, limit: Duration) -> bool {
        let mut tasks = self.tasks.with_lock(std::mem::take);
        timeout(limit, async { while tasks.join_next().await.is_some() {} }).await.is_ok()
    }

    /// Binds the pod and sends the result. While a write's outcome is unknown, the pod keeps its devices and is read
    /// again.
    async fn bind_and_confirm(
        &self,
        args: &BindArgs,
        mut reply: oneshot::Sender<Result<(), BindError>>,
    ) {
        let mut decision_id = 0;
        let write_error = match self.place_and_write(args, &mut reply, &mut decision_id).await {
            Ok(()) => {
                let _ = reply.send(Ok(()));
                return;
            }
            Err(BindFailure::BeforeWrite(error)) => {
                let _ = reply.send(Err(error));
                return;
            }
            Err(BindFailure::DuringWrite(error)) => error,
        };
        let failed_at = Instant::now();
        let is_refused = write_error.is_refusal();
        let mut outcome = self.reread(args, decision_id, is_refused).await;
        let _ = reply.send(match outcome {
            WriteOutcome::Bound => Ok(()),
            WriteOutcome::Unbound | WriteOutcome::Unknown => Err(write_error),
        });
        while matches!(outcome, WriteOutcome::Unknown) {
            sleep(REREAD_INTERVAL).await;
            let is_over = failed_at.elapsed() > LOST_WRITE_TIMEOUT;
            outcome = self.reread(args, decision_id, is_over).await;
        }
    }

    async fn place_and_write(
        &self,
        args: &BindArgs,
        reply: &mut oneshot::Sender<Result<(), BindError>>,
        decision_id: &mut u64,
    ) -> Result<(), BindFailure> {
        if !self.index.with_lock(|index| index.is_synced()) {
            return Err(BindFailure::BeforeWrite(BindError::NotReady));
        }
        let term =
            self.fence.acquire().await.map_err(|error| BindFailure::BeforeWrite(error.into()))?;
        let cached_pod = self.index.with_lock(|index| index.pod(&args.pod_uid).cloned());
        let pod = match cached_pod {
            Some(pod) => pod,
            // kube-scheduler's watch may be ahead of this one.
            None => self.read(args).await.map_err(BindFailure::BeforeWrite)?,
        };
        let result = self.index.with_lock(|index| index.arrive(&pod, &args.node));
        if matches!(result, Err(Refusal::GangLostNode(_))) {
            self.metrics.count_gang(false);
        }
        let to_error = |source| BindError::Refused { node: args.node.clone(), source };
        let (decision, arrival) =
            result.map_err(|refusal| BindFailure::BeforeWrite(to_error(refusal)))?;
        *decision_id = decision.id;
        let is_gang_member = !matches!(arrival, Arrival::Single);
        match arrival {
            Arrival::Single => {}
            Arrival::Last => self.metrics.count_gang(true),
            Arrival::Waiting(wait) => {
                let outcome =
                    self.wait_for_gang((&args.pod_uid, decision.id), term, wait, reply).await;
                outcome.map_err(BindFailure::BeforeWrite)?;
            }
        }
        // Only gang members need a permit, so a large gang does not delay the binds of single pods.
        let _permit = if is_gang_member { self.writes.acquire().await.ok() } else { None };
        if let Err(error) = self.fence.renew_in_term(term).await {
            self.index.with_lock(|index| index.forget(&args.pod_uid, decision.id));
            return Err(BindFailure::BeforeWrite(error.into()));
        }
        self.index.with_lock(|index| index.begin_write(&args.pod_uid, decision.id));
        self.write(args, self.annotations(&pod, &decision))
            .await
            .map_err(BindFailure::DuringWrite)?;
        let devices: Vec<_> = decision.placement.devices.iter().map(|it| it.id.as_str()).collect();
        let devices = devices.join(",");
        tracing::info!(pod = pod.namespaced_name(), node = args.node, devices, "pod bound");
        Ok(())
    }

    /// Waits for the other members of the pod's gang. Ends early if kube-scheduler cancels the bind call, the Lease is
    /// lost, or the extender shuts down.
    async fn wait_for_gang(
        &self,
        (uid, decision_id): (&str, u64),
        term: u64,
        mut wait: GangWait,
        reply: &mut oneshot::Sender<Result<(), BindError>>,
    ) -> Result<(), BindError> {
        let WaitLimits { gang_wait, stop } = &self.limits;
        // Reservations are valid only while no other replica may bind.
        let lease_lost = async {
            while self.fence.renew_in_term(term).await.is_ok() {
                sleep(LEASE_CHECK_INTERVAL).await;
            }
        };
        let mut is_late = false;
        tokio::select! {
            arrived = timeout(*gang_wait, wait.all_arrived()) => is_late = arrived.is_err(),
            () = reply.closed() => {}
            () = lease_lost => {}
            () = stop.cancelled() => {}
        }
        let (gang, now) = (wait.gang().to_owned(), Instant::now());
        let (is_complete, is_given_up) = self.index.with_lock(|index| {
            // A later bind of this pod may have replaced this one.
            if wait.is_complete() {
                return (index.is_current_decision(uid, decision_id), false);
            }
            if reply.is_closed() {
                index.withdraw(uid, decision_id, &wait);
                return (false, false);
            }
            let is_given_up = index.give_up(&wait);
            if is_given_up && is_late {
                index.start_backoff(&wait, *gang_wait / 2, now);
            }
            (false, is_given_up)
        });
        if is_complete {
            return Ok(());
        }
        if is_given_up {
            self.metrics.count_gang(false);
            tracing::warn!(
                gang,
                is_late,
                "gang given up: not all of its pods came to be bound in time"
            );
        }
        Err(if is_late {
            BindError::GangTimedOut { gang, limit: *gang_wait }
        } else {
            BindError::GangGivenUp(gang)
        })
    }

    /// Message for a pod whose gang was given up and is in back-off; `None` for other pods.
    pub(crate) fn backoff_message(&self, pod: &PodFacts) -> Option<String> {
        let now = Instant::now();
        let remaining_seconds =
            self.index.with_lock(|index| index.remaining_backoff(pod, now))?.as_secs() + 1;
        let gang = pod.gang.as_ref()?.as_ref().ok()?;
        Some(format!(
            "gang {} was not complete in time, and is tried again in {remaining_seconds} s: look at the events of all its pods",
            gang.name
        ))
    }

    /// Reads the pod after a failed write. The outcome of an unbound pod is `Unbound` if `is_over` (the write can no
    /// longer take effect), else `Unknown`.
    async fn reread(&self, args: &BindArgs, decision_id: u64, is_over: bool) -> WriteOutcome {
        match self.read(args).await {
            Ok(pod) if pod.node.is_some() => {
                let is_on_requested_node = pod.node.as_ref() == Some(&args.node);
                self.index.with_lock(|index| index.set_pod(pod));
                if is_on_requested_node { WriteOutcome::Bound } else { WriteOutcome::Unbound }
            }
            Ok(_) if is_over => {
                self.index.with_lock(|index| index.end_write(&args.pod_uid, decision_id));
                WriteOutcome::Unbound
            }
            Err(BindError::PodGone(_)) => {
                self.index.with_lock(|index| index.remove_pod(&args.pod_uid));
                WriteOutcome::Unbound
            }
            Ok(_) | Err(_) => WriteOutcome::Unknown,
        }
    }

    async fn read(&self, args: &BindArgs) -> Result<PodFacts, BindError> {
        let gone_error = || BindError::PodGone(format!("{}/{}", args.pod_namespace, args.pod_name));
        let object = with_timeout(self.pods(args).get_opt(&args.pod_name)).await?;
        let pod = PodFacts::of(&object.ok_or_else(gone_error)?);
        let is_same = pod.uid == args.pod_uid && !pod.is_ended;
        if is_same { Ok(pod) } else { Err(gone_error()) }
    }

    async fn write(
        &self,
        args: &BindArgs,
        annotations: BTreeMap<String, String>,
    ) -> Result<(), BindError> {
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(args.pod_name.clone()),
                namespace: Some(args.pod_namespace.clone()),
                uid: Some(args.pod_uid.clone()),
                annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(args.node.clone()),
                ..ObjectReference::default()
            },
        };
        let (pods, parameters) = (self.pods(args), PostParams::default());
        // The client itself retries after 429 (too many requests).
        let request =
            pods.create_subresource::<_, Status>("binding", &args.pod_name, &parameters, &binding);
        with_timeout(request).await.map(drop)
    }

    fn annotations(
        &self,
        pod: &PodFacts,
        decision: &PlacementDecision,
    ) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        let PlacementDecision { placement, first_gpu: first, .. } = decision;
        if !placement.devices.is_empty() {
            annotations.insert(PodPlacement::ANNOTATION.to_owned(), placement.to_annotation());
        }
        if let (
            Ok(request @ GpuRequest::Share { scheme: ShareScheme::Gpushare, .. }),
            Some((index, gpu)),
        ) = (&pod.resources.gpus, first)
        {
            annotations.extend(gpushare::annotations(*index, gpu, *request, self.clock.now()));
        }
        annotations
    }

    fn pods(&self, args: &BindArgs) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &args.pod_namespace)
    }
}

async fn with_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, BindError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| BindError::Kube(Box::new(error))),
        Err(_) => Err(BindError::RequestTimedOut),
    }
}

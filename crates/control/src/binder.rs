//! Binding of a pod: the devices are chosen, and one write says node and devices.
//!
//! The Binding carries the placement in its annotations. The API server merges them with the node's name in one
//! update, and refuses it for a pod of another identity, a deleted one and a bound one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams, core::Status};
use tokio::time::timeout;
use windlass_core::annotation::PodPlacement;
use windlass_host::{clock::Clock, shared::Shared};

use crate::{
    extender::BindArgs,
    facts::{GpuWish, PodFacts, SharedBy},
    fence::{Fence, FenceError},
    gpushare,
    index::{Index, Refusal},
};

/// Deadline of a request to the API server; kube-scheduler gives the whole call 5 s by default.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// Binds pods.
pub(crate) struct Binder {
    client: kube::Client,
    index: Arc<Shared<Index>>,
    fence: Arc<Fence>,
    clock: Clock,
}

/// Reason why a pod is not bound. kube-scheduler tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The view lacks objects.
    #[error("not ready: the cluster's objects have not been read yet")]
    NotReady,
    /// The pod is gone, or another has its name.
    #[error("pod {0} is gone")]
    Gone(String),
    /// The node cannot serve the pod any more.
    #[error("node {node} cannot serve the pod any more")]
    Refused {
        /// The node.
        node: String,
        /// The reason.
        source: Refusal,
    },
    /// Another replica binds.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The API server refused.
    #[error("the API server refused")]
    Kube(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("the API server did not answer within {ANSWER_LIMIT:?}")]
    Late,
}

// === impl Binder ===

impl Binder {
    pub(crate) fn new(
        client: kube::Client,
        index: Arc<Shared<Index>>,
        fence: Arc<Fence>,
        clock: Clock,
    ) -> Self {
        Self { client, index, fence, clock }
    }

    /// Binds the pod. After an answer that was lost, the pod's object says whether it is bound.
    pub(crate) async fn bind(&self, args: &BindArgs) -> Result<(), BindError> {
        if !self.index.step(|index| index.is_synced()) {
            return Err(BindError::NotReady);
        }
        self.fence.hold().await?;
        let known = self.index.step(|index| index.pod(&args.pod_uid).cloned());
        let pod = match known {
            Some(pod) => pod,
            // The scheduler's watch may be ahead of ours.
            None => self.read(args).await?,
        };
        let placed = self.index.step(|index| index.place(&pod, &args.node));
        let refused = |source| BindError::Refused { node: args.node.clone(), source };
        let placement = placed.map_err(refused)?;
        if let Err(error) = self.write(args, self.annotations(&pod, args, &placement)).await {
            self.settle(args, error).await?;
        }
        let devices: Vec<_> = placement.devices.iter().map(|device| device.id.as_str()).collect();
        let devices = devices.join(",");
        tracing::info!(pod = pod.title(), node = args.node, devices, "pod bound");
        Ok(())
    }

    /// Reads the pod after a failure: the write may have been done all the same. Until the API server says so, the pod
    /// counts on its node.
    async fn settle(&self, args: &BindArgs, failure: BindError) -> Result<(), BindError> {
        match self.read(args).await {
            Ok(pod) => {
                let is_bound = pod.node.as_ref() == Some(&args.node);
                self.index.step(|index| {
                    if pod.node.is_none() {
                        index.forget(&args.pod_uid);
                    }
                    index.set_pod(pod);
                });
                if is_bound { Ok(()) } else { Err(failure) }
            }
            Err(BindError::Gone(_)) => {
                self.index.step(|index| index.forget(&args.pod_uid));
                Err(failure)
            }
            // Unknown: the watch brings the truth, and the pod keeps its devices until then.
            Err(_) => Err(failure),
        }
    }

    async fn read(&self, args: &BindArgs) -> Result<PodFacts, BindError> {
        let gone = || BindError::Gone(format!("{}/{}", args.pod_namespace, args.pod_name));
        let found = call(self.pods(args).get_opt(&args.pod_name)).await?;
        let pod = PodFacts::of(&found.ok_or_else(gone)?);
        if pod.uid == args.pod_uid { Ok(pod) } else { Err(gone()) }
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
                annotations: Some(annotations).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(args.node.clone()),
                ..ObjectReference::default()
            },
        };
        let (pods, how) = (self.pods(args), PostParams::default());
        let posted =
            pods.create_subresource::<_, Status>("binding", &args.pod_name, &how, &binding);
        call(posted).await.map(drop)
    }

    fn annotations(
        &self,
        pod: &PodFacts,
        args: &BindArgs,
        placement: &PodPlacement,
    ) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        if !placement.devices.is_empty() {
            annotations.insert(PodPlacement::ANNOTATION.to_owned(), placement.to_annotation());
        }
        if let Ok(wish @ GpuWish::Share { by: SharedBy::Gpushare, .. }) = pod.wish.gpus
            && let Some(gpu) = self.index.step(|index| index.gpu_of(&args.pod_uid))
        {
            annotations.extend(gpushare::annotations(gpu, wish, self.clock.now()));
        }
        annotations
    }

    fn pods(&self, args: &BindArgs) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &args.pod_namespace)
    }
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, BindError> {
    match timeout(ANSWER_LIMIT, request).await {
        Ok(answer) => answer.map_err(|error| BindError::Kube(Box::new(error))),
        Err(_) => Err(BindError::Late),
    }
}

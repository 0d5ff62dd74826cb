//! The driver's two gRPC calls, prepare and unprepare, in both API versions. Every requested claim is in the answer,
//! and claims fail independently.

use std::collections::BTreeMap;

use tokio::task::JoinSet;
use tonic::{Request, Response, Status};
use windlass_allocations::ledger::ClaimRef;
use windlass_kubelet_api::dra::{v1, v1beta1};

use super::{queue::ClaimQueue, record::PreparedDevice};
use crate::metrics::{ClaimCall, ClaimMetrics};

/// Serves the kubelet's calls.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) queue: ClaimQueue,
    pub(super) metrics: ClaimMetrics,
}

/// Most claims of one call. A kubelet sends the claims of one pod.
const MAX_CLAIMS: usize = 256;

// === impl Service ===

impl Service {
    async fn prepare(
        &self,
        claims: impl IntoIterator<Item = ClaimRef>,
    ) -> BTreeMap<String, Result<Vec<PreparedDevice>, String>> {
        for_each_claim(claims, |claim| {
            let Self { queue, metrics } = self.clone();
            async move { metrics.count_outcome(ClaimCall::Prepare, queue.prepare(claim).await) }
        })
        .await
    }

    async fn release(
        &self,
        claims: impl IntoIterator<Item = ClaimRef>,
    ) -> BTreeMap<String, Result<(), String>> {
        for_each_claim(claims, |claim| {
            let Self { queue, metrics } = self.clone();
            async move { metrics.count_outcome(ClaimCall::Release, queue.release(claim).await) }
        })
        .await
    }
}

fn check_count(count: usize) -> Result<(), Status> {
    if count <= MAX_CLAIMS {
        return Ok(());
    }
    let message = format!("the call has {count} claims; at most {MAX_CLAIMS} are allowed");
    Err(Status::invalid_argument(message))
}

/// Outcome for each claim, by UID. Claims run concurrently.
async fn for_each_claim<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    claims: impl IntoIterator<Item = ClaimRef>,
    work: impl Fn(ClaimRef) -> F,
) -> BTreeMap<String, T> {
    let mut tasks = JoinSet::new();
    for claim in claims {
        let (uid, work) = (claim.uid.clone(), work(claim));
        tasks.spawn(async move { (uid, work.await) });
    }
    // The work neither panics nor is cancelled.
    tasks.join_all().await.into_iter().collect()
}

/// Implements the calls of one API version. The versions differ only in their type of a device.
macro_rules! serve_version {
    ($version:ident, $device:expr) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Service {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                check_count(claims.len())?;
                let outcomes = self.prepare(claims.into_iter().map(|claim| {
                    let $version::Claim { namespace, uid, name } = claim;
                    ClaimRef { namespace, name, uid }
                }));
                let response = |outcome: Result<Vec<PreparedDevice>, String>| match outcome {
                    Ok(devices) => $version::NodePrepareResourceResponse {
                        devices: devices.into_iter().map($device).collect(),
                        error: String::new(),
                    },
                    Err(error) => {
                        $version::NodePrepareResourceResponse { devices: Vec::new(), error }
                    }
                };
                let claims =
                    outcomes.await.into_iter().map(|(uid, outcome)| (uid, response(outcome)));
                let claims = claims.collect();
                Ok(Response::new($version::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                check_count(claims.len())?;
                let outcomes = self.release(claims.into_iter().map(|claim| {
                    let $version::Claim { namespace, uid, name } = claim;
                    ClaimRef { namespace, name, uid }
                }));
                let response = |outcome: Result<(), String>| {
                    let error = outcome.err().unwrap_or_default();
                    $version::NodeUnprepareResourceResponse { error }
                };
                let claims =
                    outcomes.await.into_iter().map(|(uid, outcome)| (uid, response(outcome)));
                let claims = claims.collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

serve_version!(v1, |device| v1::Device {
    request_names: device.requests,
    pool_name: device.pool,
    device_name: device.name,
    cdi_device_ids: device.cdi,
    share_id: device.share,
});

serve_version!(v1beta1, |device| v1beta1::Device {
    request_names: device.requests,
    pool_name: device.pool,
    device_name: device.name,
    cdi_device_ids: device.cdi,
});

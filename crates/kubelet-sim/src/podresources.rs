//! The pod resources server: devices by pod and container, API `v1`, with the kubelet's rate limit.

mod answer;
mod rate;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::{net::UnixListener, time::Instant};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use windlass_kubelet_api::{
    podresources::{
        self as wire,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
    server::server,
};

use self::rate::TokenBucket;
use crate::{config::Config, incoming, manager_task::ManagerHandle};

/// Serves on this listener until the kubelet ends.
pub(crate) async fn serve(
    listener: UnixListener,
    handle: ManagerHandle,
    config: Arc<Config>,
    ended: CancellationToken,
) {
    let incoming = incoming::connections(listener, ended.clone());
    let bucket =
        TokenBucket::new(config.pod_resources_qps, config.pod_resources_burst, Instant::now());
    let lister = Lister { handle, bucket: Mutex::new(bucket) };
    let server = server()
        .add_service(PodResourcesListerServer::new(lister))
        .serve_with_incoming_shutdown(incoming, ended.cancelled_owned());
    if let Err(error) = server.await {
        tracing::error!(%error, "the pod resources server ended");
    }
}

struct Lister {
    handle: ManagerHandle,
    bucket: Mutex<TokenBucket>,
}

// === impl Lister ===

impl Lister {
    /// Applies the rate limit to a call.
    fn admit_call(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket
            .try_take(Instant::now())
            .then_some(())
            .ok_or_else(|| Status::resource_exhausted("rejected by rate limit"))
    }
}

fn stopped(_: crate::manager_task::KubeletEnded) -> Status {
    Status::unavailable("the kubelet was stopped")
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        self.admit_call()?;
        let list = |task: &mut crate::manager_task::ManagerTask| {
            task.manager.collect_garbage();
            answer::list(task)
        };
        let pod_resources = self.handle.update(list).await.map_err(stopped)?;
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        self.admit_call()?;
        let list = |task: &crate::manager_task::ManagerTask| answer::allocatable(&task.manager);
        let devices = self.handle.read(list).await.map_err(stopped)?;
        Ok(Response::new(wire::AllocatableResourcesResponse { devices, ..Default::default() }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        self.admit_call()?;
        let wire::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let message = format!("pod {pod_name} in namespace {pod_namespace} not found");
        let find = move |task: &crate::manager_task::ManagerTask| {
            answer::find(task, &pod_namespace, &pod_name)
        };
        let resources = self.handle.read(find).await.map_err(stopped)?;
        let pod_resources = Some(resources.ok_or_else(|| Status::unknown(message))?);
        Ok(Response::new(wire::GetPodResourcesResponse { pod_resources }))
    }
}

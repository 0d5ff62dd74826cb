//! gRPC services of the driver: registration, claims, health.

use std::{
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};
use windlass_kubelet_api::{
    dra::{
        SERVICES,
        health::{
            DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
            NodeWatchResourcesResponse, dra_resource_health_server::DraResourceHealth,
        },
        v1::{
            NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
            NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
            NodeUnprepareResourcesResponse, dra_plugin_server::DraPlugin,
        },
    },
    pluginregistration::{
        DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
};

use crate::{DRIVER, claims::Claims, defect::Defect, slices};

/// Timeout of a health report, in seconds, and the interval of reports.
const HEALTH_SECONDS: i64 = 2;
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);

/// All services, with shared state.
#[derive(Clone)]
pub(crate) struct Services {
    claims: Arc<Claims>,
    endpoint: String,
    pool: String,
    accepted: Arc<AtomicUsize>,
    defect: Defect,
}

type HealthStream = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

// === impl Services ===

impl Services {
    pub(crate) fn new(claims: Arc<Claims>, endpoint: &Path, node: &str, defect: Defect) -> Self {
        let endpoint = match defect {
            Defect::RelativeEndpoint => "dra.sock".to_owned(),
            _ => endpoint.display().to_string(),
        };
        Self { claims, endpoint, pool: node.to_owned(), accepted: Arc::default(), defect }
    }

    /// Health report of all devices. With the defect of partial reports it has one device, which `time` selects.
    fn health_report(&self, time: usize) -> NodeWatchResourcesResponse {
        let to_health = |device_name: String| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: self.pool.clone(), device_name }),
            health: HealthStatus::Healthy.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: HEALTH_SECONDS,
            message: String::new(),
        };
        let mut devices: Vec<_> = slices::devices().into_iter().map(to_health).collect();
        if self.defect == Defect::ReportsPartialHealth {
            devices = vec![devices.swap_remove(time % devices.len())];
        }
        NodeWatchResourcesResponse { devices }
    }
}

#[tonic::async_trait]
impl Registration for Services {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        if self.defect == Defect::SlowInfo {
            sleep(Duration::from_millis(1500)).await;
        }
        let is_over = self.accepted.load(Ordering::Relaxed) > 0;
        if is_over && self.defect == Defect::AnswersOneKubelet {
            return Err(Status::failed_precondition("registered"));
        }
        let supported_versions = match self.defect {
            Defect::UnknownVersions => vec!["1.0.0".to_owned()],
            _ => [SERVICES[0], SERVICES[2]].map(str::to_owned).into(),
        };
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions,
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let is_registered = request.into_inner().plugin_registered;
        if !is_registered && self.defect == Defect::EndsWhenRefused {
            std::process::exit(1);
        }
        self.accepted.fetch_add(usize::from(is_registered), Ordering::Relaxed);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Services {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = request.into_inner().claims;
        if self.defect == Defect::AnswersTheFirstClaim {
            claims.truncate(1);
        }
        let mut response = NodePrepareResourcesResponse::default();
        for claim in claims {
            let result = match self.claims.prepare(&claim).await {
                Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
                Err(error) => NodePrepareResourceResponse { devices: Vec::new(), error },
            };
            response.claims.insert(claim.uid, result);
        }
        if self.defect == Defect::AnswersForOtherClaims {
            response.claims.insert("stranger".to_owned(), NodePrepareResourceResponse::default());
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut response = NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let error = self.claims.release(&claim).await.err().unwrap_or_default();
            response.claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(response))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Services {
    type NodeWatchResourcesStream = HealthStream;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<HealthStream>, Status> {
        let (sender, reports) = mpsc::channel(1);
        let services = self.clone();
        tokio::spawn(async move {
            for time in 0.. {
                if sender.send(Ok(services.health_report(time))).await.is_err() {
                    return;
                }
                match services.defect {
                    Defect::EndsHealthStreams => return,
                    Defect::ReportsHealthOnce => sender.closed().await,
                    _ => sleep(HEALTH_INTERVAL).await,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(reports))))
    }
}

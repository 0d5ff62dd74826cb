//! gRPC client of one endpoint of a DRA driver, in the version of its registration.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Channel};
use windlass_kubelet_api::dra::{
    checkpoint::Device,
    health::{
        NodeWatchResourcesRequest, NodeWatchResourcesResponse,
        dra_resource_health_client::DraResourceHealthClient,
    },
    v1, v1beta1,
};

use super::{ClaimId, connector};
use crate::plugin::RpcError;

/// Version of the DRA service that the kubelet calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraService {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1Beta1,
}

/// A registered endpoint of a driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) service: DraService,
    /// True while the DRA socket has a connection.
    pub(crate) connected: watch::Receiver<bool>,
    endpoint: PathBuf,
    channel: Channel,
    timeout: Duration,
    closed: CancellationToken,
}

/// A driver's answers by claim UID: the devices, or the error text. A released claim has no devices.
pub(crate) type ClaimResults = BTreeMap<String, Result<Vec<Device>, String>>;

// === impl DraService ===

impl DraService {
    /// Services that the kubelet supports (`servicesSupportedByKubelet`).
    const ALL: [Self; 2] = [Self::V1, Self::V1Beta1];

    fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1Beta1 => "v1beta1.DRAPlugin",
        }
    }

    /// First service in a driver's list that the kubelet supports. The error is the kubelet's text.
    pub(crate) fn choose(offered: &[String]) -> Result<Self, String> {
        if offered.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
        }
        let parse = |name: &String| Self::ALL.into_iter().find(|service| service.name() == name);
        offered.iter().find_map(parse).ok_or_else(|| {
            let supported = Self::ALL.map(|service| service.name().to_owned());
            format!(
                "none of services supported by the plugin ({}) are supported by the kubelet ({})",
                quoted(offered),
                quoted(&supported)
            )
        })
    }
}

impl fmt::Display for DraService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A list of strings, as Go's `%q` prints it.
fn quoted(strings: &[String]) -> String {
    let strings: Vec<String> = strings.iter().map(|string| format!("{string:?}")).collect();
    format!("[{}]", strings.join(" "))
}

/// Makes a call in one API version; the versions differ only in their types. `$parts` is the closure
/// of [`to_claim_results`].
macro_rules! call {
    ($driver:ident.$call:ident($claims:ident), $version:ident::$request:ident, $parts:expr) => {{
        let to_claim = |ClaimId { namespace, name, uid }| $version::Claim { namespace, uid, name };
        let claims = $claims.iter().cloned().map(to_claim).collect();
        let request = $driver.request($version::$request { claims });
        let mut client = $version::dra_plugin_client::DraPluginClient::new($driver.channel.clone());
        let response = $driver.call(client.$call(request)).await?;
        Ok(to_claim_results(response.claims, $parts))
    }};
}

// === impl Driver ===

impl Driver {
    /// An endpoint. The first call opens the connection. `timeout` is the deadline of each call but
    /// [`watch_resources`](Self::watch_resources).
    pub(crate) fn new(
        name: String,
        endpoint: PathBuf,
        service: DraService,
        timeout: Duration,
    ) -> Self {
        let (channel, connected) = connector::lazy_driver_channel(endpoint.clone());
        let closed = CancellationToken::new();
        Self { name, service, connected, endpoint, channel, timeout, closed }
    }

    pub(crate) fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// Closes the endpoint after its deregistration: calls in progress fail.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Waits until the endpoint is closed.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// `NodePrepareResources`.
    pub(crate) async fn prepare(&self, claims: &[ClaimId]) -> Result<ClaimResults, RpcError> {
        match self.service {
            DraService::V1 => call!(
                self.node_prepare_resources(claims),
                v1::NodePrepareResourcesRequest,
                |claim| (claim.error, claim.devices.into_iter().map(from_v1).collect())
            ),
            DraService::V1Beta1 => call!(
                self.node_prepare_resources(claims),
                v1beta1::NodePrepareResourcesRequest,
                |claim| (claim.error, claim.devices.into_iter().map(from_v1beta1).collect())
            ),
        }
    }

    /// `NodeUnprepareResources`.
    pub(crate) async fn unprepare(&self, claims: &[ClaimId]) -> Result<ClaimResults, RpcError> {
        match self.service {
            DraService::V1 => call!(
                self.node_unprepare_resources(claims),
                v1::NodeUnprepareResourcesRequest,
                |claim| (claim.error, Vec::new())
            ),
            DraService::V1Beta1 => call!(
                self.node_unprepare_resources(claims),
                v1beta1::NodeUnprepareResourcesRequest,
                |claim| (claim.error, Vec::new())
            ),
        }
    }

    /// `NodeWatchResources`, even if the driver's list of services lacks the health service.
    pub(crate) async fn watch_resources(
        &self,
    ) -> Result<Streaming<NodeWatchResourcesResponse>, RpcError> {
        let mut client = DraResourceHealthClient::new(self.channel.clone());
        self.call(client.node_watch_resources(NodeWatchResourcesRequest {})).await
    }

    /// Request with the endpoint's deadline.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Waits for the response of a call. Fails when the endpoint is closed.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        // The future of a tonic call is large. In a box, it does not enlarge the caller's future.
        match self.closed.run_until_cancelled(Box::pin(call)).await {
            Some(response) => Ok(response?.into_inner()),
            None => Err(RpcError::closing()),
        }
    }
}

/// Converts a response. `parts` returns the error text, which is empty on success, and the devices.
fn to_claim_results<T>(
    claims: BTreeMap<String, T>,
    parts: impl Fn(T) -> (String, Vec<Device>),
) -> ClaimResults {
    let to_result = |(uid, claim)| match parts(claim) {
        (error, devices) if error.is_empty() => (uid, Ok(devices)),
        (error, _) => (uid, Err(error)),
    };
    claims.into_iter().map(to_result).collect()
}

fn from_v1(device: v1::Device) -> Device {
    Device {
        pool_name: device.pool_name,
        device_name: device.device_name,
        share_id: device.share_id,
        request_names: none_if_empty(device.request_names),
        cdi_device_ids: none_if_empty(device.cdi_device_ids),
    }
}

fn from_v1beta1(device: v1beta1::Device) -> Device {
    let v1beta1::Device { request_names, pool_name, device_name, cdi_device_ids } = device;
    from_v1(v1::Device { request_names, pool_name, device_name, cdi_device_ids, share_id: None })
}

/// A list as Go decodes it from protobuf: an empty list is nil.
fn none_if_empty(names: Vec<String>) -> Option<Vec<String>> {
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offered: &[&str], expected: Result<DraService, &str>) {
        let offered: Vec<String> = offered.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(DraService::choose(&offered), expected.map_err(str::to_owned));
    }

    #[test]
    fn the_kubelet_chooses_the_first_supported_service_in_the_drivers_list() {
        check(&["v1alpha1.DRAResourceHealth", "v1beta1.DRAPlugin", "v1.DRAPlugin"], {
            Ok(DraService::V1Beta1)
        });
        check(&["v1.DRAPlugin", "v1beta1.DRAPlugin"], Ok(DraService::V1));
        check(&[], Err("empty list of supported gRPC services (aka supported versions)"));
        check(
            &["1.0.0", "v2.DRAPlugin"],
            Err("none of services supported by the plugin ([\"1.0.0\" \"v2.DRAPlugin\"]) are \
                 supported by the kubelet ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])"),
        );
    }
}

//! The kubelet's side of the two sockets.

use std::path::Path;

use tonic::transport::{Channel, Endpoint, Uri};
use windlass_kubelet_api::{
    dra::{
        health::dra_resource_health_client::DraResourceHealthClient,
        v1::{
            Claim, Device, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
            NodeUnprepareResourcesRequest, dra_plugin_client::DraPluginClient,
        },
    },
    pluginregistration::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
    },
    socket::SocketPath,
};

/// A connection to the driver.
#[derive(Clone)]
pub(crate) struct Kubelet {
    calls: DraPluginClient<Channel>,
    channel: Channel,
}

// === impl Kubelet ===

impl Kubelet {
    /// Finds the driver by its registration socket, and registers it.
    pub(crate) async fn register(registration: &Path) -> Self {
        let mut client = registrar(registration).await;
        let info = client.get_info(InfoRequest {}).await.expect("it answers").into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.expect("it answers");
        Self::dial(Path::new(&info.endpoint)).await
    }

    pub(crate) async fn dial(endpoint: &Path) -> Self {
        let path = SocketPath::new(endpoint).expect("short");
        let channel = path.dial().await.expect("the driver listens");
        Self { calls: DraPluginClient::new(channel.clone()), channel }
    }

    /// The answer for these claims of namespace `ns`, each by name and UID.
    pub(crate) async fn prepare_all(
        &mut self,
        claims: &[(&str, &str)],
    ) -> NodePrepareResourcesResponse {
        let request = NodePrepareResourcesRequest { claims: claims.iter().map(claim).collect() };
        let answer = self.calls.node_prepare_resources(request).await;
        let answer = answer.expect("failures are reported for each claim").into_inner();
        let answered: Vec<_> = answer.claims.keys().map(String::as_str).collect();
        let mut requested: Vec<_> = claims.iter().map(|(_, uid)| *uid).collect();
        requested.sort_unstable();
        assert_eq!(answered, requested, "every claim is in the answer");
        answer
    }

    /// The devices of a claim whose UID is its name, or the error.
    pub(crate) async fn prepare(&mut self, name: &str) -> Result<Vec<Device>, String> {
        self.prepare_claim((name, name)).await
    }

    /// The devices of a claim, by name and UID.
    pub(crate) async fn prepare_claim(
        &mut self,
        claim_names: (&str, &str),
    ) -> Result<Vec<Device>, String> {
        let answer = self.prepare_all(&[claim_names]).await;
        let answer = answer.claims[claim_names.1].clone();
        if answer.error.is_empty() { Ok(answer.devices) } else { Err(answer.error) }
    }

    pub(crate) async fn unprepare(&mut self, name: &str) -> Result<(), String> {
        self.unprepare_claim((name, name)).await
    }

    /// Releases a claim of namespace `ns`, by its name and UID.
    pub(crate) async fn unprepare_claim(
        &mut self,
        claim_names: (&str, &str),
    ) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim(&claim_names)] };
        let answer = self.calls.node_unprepare_resources(request).await;
        let answer = answer.expect("failures are reported for each claim").into_inner();
        match answer.claims[claim_names.1].error.as_str() {
            "" => Ok(()),
            error => Err(error.to_owned()),
        }
    }

    pub(crate) fn health(&self) -> DraResourceHealthClient<Channel> {
        DraResourceHealthClient::new(self.channel.clone())
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// A connection to a registration socket, with the authority that Go's gRPC makes of the path.
pub(crate) async fn registrar(registration: &Path) -> RegistrationClient<Channel> {
    let path = registration.to_str().expect("text");
    let authority = path.replace('/', "%2F");
    let origin = Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
    let endpoint = Endpoint::from_shared(format!("unix:{path}")).expect("an address");
    let channel = endpoint.origin(origin.expect("it parses")).connect().await;
    RegistrationClient::new(channel.expect("the driver listens"))
}

fn claim((name, uid): &(&str, &str)) -> Claim {
    Claim { namespace: "ns".to_owned(), name: (*name).to_owned(), uid: (*uid).to_owned() }
}

//! DRA driver that the kubelet has registered, and calls of its API.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use tokio::time::sleep;
use tonic::{Status, transport::Channel};
use windlass_kubelet_api::{
    dra::v1::{
        Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
        dra_plugin_client::DraPluginClient,
    },
    socket::SocketPath,
};
use windlass_kubelet_sim::{DraService, Event};

use super::{POLL_INTERVAL, SETTLE_TIME, Testbed};
use crate::{
    case::{CheckError, failed, not_applicable},
    clients::call_within,
    process::Process,
};

/// The kubelet's limit for calls about claims (`defaultClientCallTimeout`).
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(45);

/// Registered driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) endpoint: PathBuf,
    client: DraPluginClient<Channel>,
}

/// Devices or error of each claim, by claim UID.
pub(crate) type PrepareResults = BTreeMap<String, Result<Vec<Device>, String>>;

// === impl Driver ===

impl Driver {
    /// Calls `NodePrepareResources` and returns the response or its status. A timeout fails the case.
    pub(crate) async fn call_prepare(
        &self,
        claims: &[&ResourceClaim],
    ) -> Result<Result<PrepareResults, Status>, CheckError> {
        let request = NodePrepareResourcesRequest { claims: ids(claims) };
        let mut client = self.client.clone();
        let call = client.node_prepare_resources(request);
        let result = call_within("NodePrepareResources", CALL_LIMIT, call).await?;
        let to_entry = |(uid, response): (String, _)| (uid, devices_or_error(response));
        Ok(result.map(|response| response.claims.into_iter().map(to_entry).collect()))
    }

    /// Same as [`Driver::call_prepare`]. An error of the whole call fails the case.
    pub(crate) async fn prepare(
        &self,
        claims: &[&ResourceClaim],
    ) -> Result<PrepareResults, CheckError> {
        self.call_prepare(claims).await?.or_else(|status| {
            let (code, message) = (status.code(), status.message());
            failed(format!("the call fails for all claims: {code:?}: {message}"))
        })
    }

    /// Prepares one claim and returns its devices. A claim without devices fails the case.
    pub(crate) async fn prepare_one(
        &self,
        claim: &ResourceClaim,
    ) -> Result<Vec<Device>, CheckError> {
        prepared_devices(&self.prepare(&[claim]).await?, claim)
    }

    /// Releases claims by `NodeUnprepareResources`. A missing entry or an error of any claim fails the case.
    pub(crate) async fn release(&self, claims: &[&ResourceClaim]) -> Result<(), CheckError> {
        let request = NodeUnprepareResourcesRequest { claims: ids(claims) };
        let mut client = self.client.clone();
        let call = client.node_unprepare_resources(request);
        let response =
            call_within("NodeUnprepareResources", CALL_LIMIT, call).await?.map_err(|status| {
                CheckError::Failed(format!("NodeUnprepareResources: {}", status.message()))
            })?;
        for claim in ids(claims) {
            match response.claims.get(&claim.uid) {
                None => return failed(format!("the response lacks claim {}", claim.name)),
                Some(result) if !result.error.is_empty() => {
                    return failed(format!(
                        "claim {} is not released: {}",
                        claim.name, result.error
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Devices of a claim in a response. A claim without devices fails the case.
pub(crate) fn prepared_devices(
    results: &PrepareResults,
    claim: &ResourceClaim,
) -> Result<Vec<Device>, CheckError> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match results.get(claim.metadata.uid.as_deref().unwrap_or_default()) {
        None => failed(format!("the response lacks claim {name}")),
        Some(Err(error)) => failed(format!("claim {name} is not prepared: {error}")),
        Some(Ok(devices)) if devices.is_empty() => failed(format!("claim {name} has no device")),
        Some(Ok(devices)) => Ok(devices.clone()),
    }
}

fn devices_or_error(
    response: windlass_kubelet_api::dra::v1::NodePrepareResourceResponse,
) -> Result<Vec<Device>, String> {
    if response.error.is_empty() { Ok(response.devices) } else { Err(response.error) }
}

fn ids(claims: &[&ResourceClaim]) -> Vec<Claim> {
    let id = |claim: &&ResourceClaim| Claim {
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        name: claim.metadata.name.clone().unwrap_or_default(),
    };
    claims.iter().map(id).collect()
}

/// Connects to a socket as the kubelet does.
pub(crate) async fn dial(socket: &Path) -> Result<Channel, String> {
    let path = SocketPath::new(socket).map_err(|error| error.to_string())?;
    path.dial().await.map_err(|error| error.to_string())
}

// === impl Testbed, for drivers ===

impl Testbed {
    /// Starts the program, and waits for its registration.
    pub(crate) async fn start_driver(&mut self) -> Result<Driver, CheckError> {
        self.start()?;
        self.wait_for_registration(0, self.subject.limits.start).await
    }

    /// Waits until the kubelet has registered a driver, in an event with the number `since` or a higher one.
    pub(crate) async fn wait_for_registration(
        &mut self,
        since: u64,
        limit: Duration,
    ) -> Result<Driver, CheckError> {
        let started_at = Instant::now();
        loop {
            let (events, _) = self.events().since(since);
            if let Some((name, endpoint, service)) = events.iter().find_map(registration) {
                return connect_driver(name, endpoint, service).await;
            }
            self.check_alive()?;
            if started_at.elapsed() >= limit {
                let refusal = events.iter().rev().find_map(refusal).unwrap_or("no refusal");
                return failed(format!("no driver is registered after {limit:?}: {refusal}"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Kills the program, starts it again, and waits for its registration.
    pub(crate) async fn kill_and_restart_driver(&mut self) -> Result<Driver, CheckError> {
        Process::kill(self.process()).await;
        self.restart_driver().await
    }

    /// Starts the program after its exit, and waits for its registration.
    pub(crate) async fn restart_driver(&mut self) -> Result<Driver, CheckError> {
        let is_lost = |node: &windlass_kubelet_sim::NodeStatus| {
            !node.drivers.values().flatten().any(|driver| driver.is_connected)
        };
        self.wait_for_status("the kubelet has lost the driver", is_lost).await?;
        let since = self.next_sequence();
        self.start()?;
        self.wait_for_registration(since, self.subject.limits.start).await
    }

    /// Registration sockets of drivers, in the kubelet's `plugins_registry`.
    pub(crate) fn registration_sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.kubelet.config().registry_dir());
        let sockets = files.into_iter().flatten().flatten().filter(|file| {
            let is_hidden = file.file_name().as_encoded_bytes().starts_with(b".");
            !is_hidden && file.file_type().is_ok_and(|kind| kind.is_socket())
        });
        sockets.map(|file| file.path()).collect()
    }

    /// Slices of the driver in the API server.
    pub(crate) fn slices(&self, driver: &Driver) -> Vec<ResourceSlice> {
        let mut slices = self.cluster.objects().list::<ResourceSlice>();
        slices.retain(|slice| slice.spec.driver == driver.name);
        slices
    }

    /// Waits until the driver's pools are complete and have devices, without a change for the settle time.
    pub(crate) async fn wait_for_slices(
        &mut self,
        driver: &Driver,
    ) -> Result<Vec<ResourceSlice>, CheckError> {
        let limit = self.subject.limits.start;
        let (started_at, mut unchanged_since, mut slices) =
            (Instant::now(), Instant::now(), Vec::new());
        loop {
            let current = self.slices(driver);
            if current != slices {
                (slices, unchanged_since) = (current, Instant::now());
            }
            let are_complete = slices.iter().all(|slice| is_complete(slice, &slices));
            if are_complete
                && !devices_in(&slices).is_empty()
                && unchanged_since.elapsed() >= SETTLE_TIME
            {
                return Ok(slices);
            }
            self.check_alive()?;
            if started_at.elapsed() >= limit {
                let (count, name) = (slices.len(), &driver.name);
                return failed(format!(
                    "after {limit:?}, the {count} slices of {name} form no complete pools with \
                     devices"
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Pool and name of each device in slices.
pub(crate) fn devices_in(slices: &[ResourceSlice]) -> BTreeSet<(&str, &str)> {
    let mut names = BTreeSet::new();
    for slice in slices {
        let (pool, devices) = (slice.spec.pool.name.as_str(), slice.spec.devices.iter().flatten());
        names.extend(devices.map(|device| (pool, device.name.as_str())));
    }
    names
}

/// True if the slices contain the number of slices that this slice's pool declares.
fn is_complete(slice: &ResourceSlice, slices: &[ResourceSlice]) -> bool {
    let is_of_pool = |other: &&ResourceSlice| other.spec.pool == slice.spec.pool;
    i64::try_from(slices.iter().filter(is_of_pool).count())
        == Ok(slice.spec.pool.resource_slice_count)
}

fn registration(event: &Event) -> Option<(&str, &Path, DraService)> {
    match event {
        Event::DriverRegistered { driver, endpoint, service } => Some((driver, endpoint, *service)),
        _ => None,
    }
}

fn refusal(event: &Event) -> Option<&str> {
    match event {
        Event::DriverRefused { message, .. } => Some(message),
        _ => None,
    }
}

async fn connect_driver(
    name: &str,
    endpoint: &Path,
    service: DraService,
) -> Result<Driver, CheckError> {
    if service != DraService::V1 {
        return not_applicable(format!("{name} speaks {service} only; the cases need v1"));
    }
    match dial(endpoint).await {
        Ok(channel) => Ok(Driver {
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            client: DraPluginClient::new(channel),
        }),
        Err(error) => failed(format!("{name}: {error}")),
    }
}

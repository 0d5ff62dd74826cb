//! DRA driver as the kubelet has registered it, and its calls.

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
use windlass_kubelet_sim::{Event, Service};

use super::{LOOK, SETTLED, Stage};
use crate::{
    case::{Unmet, failed, not_applicable},
    clients::answered,
    process::Process,
};

/// The kubelet's limit for calls about claims (`defaultClientCallTimeout`).
pub(crate) const CALL: Duration = Duration::from_secs(45);

/// Registered driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) endpoint: PathBuf,
    client: DraPluginClient<Channel>,
}

/// By claim UID: its devices, or the error.
pub(crate) type Prepared = BTreeMap<String, Result<Vec<Device>, String>>;

// === impl Driver ===

impl Driver {
    /// Raw response about claims.
    pub(crate) async fn asked(
        &self,
        claims: &[&ResourceClaim],
    ) -> Result<Result<Prepared, Status>, Unmet> {
        let request = NodePrepareResourcesRequest { claims: ids(claims) };
        let mut client = self.client.clone();
        let call = client.node_prepare_resources(request);
        let answer = answered("NodePrepareResources", CALL, call).await?;
        let each = |(uid, one): (String, _)| (uid, devices_or_error(one));
        Ok(answer.map(|answer| answer.claims.into_iter().map(each).collect()))
    }

    /// Response about claims. An error of the whole call fails the case.
    pub(crate) async fn prepare(&self, claims: &[&ResourceClaim]) -> Result<Prepared, Unmet> {
        self.asked(claims).await?.or_else(|status| {
            let (code, why) = (status.code(), status.message());
            failed(format!("the whole call fails, and every claim with it: {code:?}: {why}"))
        })
    }

    /// Devices of a claim. A claim without devices fails the case.
    pub(crate) async fn prepared(&self, claim: &ResourceClaim) -> Result<Vec<Device>, Unmet> {
        devices(&self.prepare(&[claim]).await?, claim)
    }

    /// Releases claims. An error about any of them fails the case.
    pub(crate) async fn release(&self, claims: &[&ResourceClaim]) -> Result<(), Unmet> {
        let request = NodeUnprepareResourcesRequest { claims: ids(claims) };
        let mut client = self.client.clone();
        let call = client.node_unprepare_resources(request);
        let answer = answered("NodeUnprepareResources", CALL, call).await?.map_err(|status| {
            Unmet::Failed(format!("NodeUnprepareResources: {}", status.message()))
        })?;
        for claim in ids(claims) {
            match answer.claims.get(&claim.uid) {
                None => return failed(format!("no answer about claim {}", claim.name)),
                Some(one) if !one.error.is_empty() => {
                    return failed(format!("claim {} is not released: {}", claim.name, one.error));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Devices of a claim in a response. A claim without devices fails the case.
pub(crate) fn devices(answer: &Prepared, claim: &ResourceClaim) -> Result<Vec<Device>, Unmet> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match answer.get(claim.metadata.uid.as_deref().unwrap_or_default()) {
        None => failed(format!("the answer says nothing about claim {name}")),
        Some(Err(error)) => failed(format!("claim {name} is not prepared: {error}")),
        Some(Ok(devices)) if devices.is_empty() => failed(format!("claim {name} has no device")),
        Some(Ok(devices)) => Ok(devices.clone()),
    }
}

fn devices_or_error(
    one: windlass_kubelet_api::dra::v1::NodePrepareResourceResponse,
) -> Result<Vec<Device>, String> {
    if one.error.is_empty() { Ok(one.devices) } else { Err(one.error) }
}

fn ids(claims: &[&ResourceClaim]) -> Vec<Claim> {
    let id = |claim: &&ResourceClaim| Claim {
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        name: claim.metadata.name.clone().unwrap_or_default(),
    };
    claims.iter().map(id).collect()
}

pub(crate) async fn dialled(socket: &Path) -> Result<Channel, String> {
    let path = SocketPath::new(socket).map_err(|error| error.to_string())?;
    path.dial().await.map_err(|error| error.to_string())
}

// === impl Stage, for drivers ===

impl Stage {
    /// Starts the program, and waits for its registration.
    pub(crate) async fn driver(&mut self) -> Result<Driver, Unmet> {
        self.start()?;
        self.registered(0, self.subject.within.start).await
    }

    /// Waits for a registration since a moment.
    pub(crate) async fn registered(
        &mut self,
        since: u64,
        limit: Duration,
    ) -> Result<Driver, Unmet> {
        let begun = Instant::now();
        loop {
            let (events, _) = self.calls().since(since);
            if let Some((name, endpoint, service)) = events.iter().find_map(registration) {
                return reached(name, endpoint, service).await;
            }
            self.alive()?;
            if begun.elapsed() >= limit {
                let refusal = events.iter().rev().find_map(refusal).unwrap_or("nothing was said");
                return failed(format!("no driver is registered after {limit:?}: {refusal}"));
            }
            sleep(LOOK).await;
        }
    }

    /// Kills the program, starts it again, and waits for its registration.
    pub(crate) async fn killed_and_started(&mut self) -> Result<Driver, Unmet> {
        Process::kill(self.process()).await;
        self.started_again().await
    }

    /// Starts the program after its end, and waits for its registration.
    pub(crate) async fn started_again(&mut self) -> Result<Driver, Unmet> {
        let is_seen = |node: &windlass_kubelet_sim::NodeStatus| {
            !node.drivers.values().flatten().any(|driver| driver.is_connected)
        };
        self.until_seen("the kubelet has lost the driver", is_seen).await?;
        let since = self.now();
        self.start()?;
        self.registered(since, self.subject.within.start).await
    }

    /// Registration sockets of drivers.
    pub(crate) fn registry(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.kubelet.config().registry_dir());
        let sockets = files.into_iter().flatten().flatten().filter(|file| {
            let is_hidden = file.file_name().as_encoded_bytes().starts_with(b".");
            !is_hidden && file.file_type().is_ok_and(|kind| kind.is_socket())
        });
        sockets.map(|file| file.path()).collect()
    }

    /// Slices of the driver.
    pub(crate) fn slices(&self, driver: &Driver) -> Vec<ResourceSlice> {
        let mut slices = self.cluster.objects().list::<ResourceSlice>();
        slices.retain(|slice| slice.spec.driver == driver.name);
        slices
    }

    /// Waits until the driver's pools are complete and have devices, and for a quiet time after that.
    pub(crate) async fn published(&mut self, driver: &Driver) -> Result<Vec<ResourceSlice>, Unmet> {
        let limit = self.subject.within.start;
        let (begun, mut quiet_since, mut seen) = (Instant::now(), Instant::now(), Vec::new());
        loop {
            let now = self.slices(driver);
            if now != seen {
                (seen, quiet_since) = (now, Instant::now());
            }
            let is_whole = seen.iter().all(|slice| is_complete(slice, &seen));
            if is_whole && !devices_in(&seen).is_empty() && quiet_since.elapsed() >= SETTLED {
                return Ok(seen);
            }
            self.alive()?;
            if begun.elapsed() >= limit {
                let (count, name) = (seen.len(), &driver.name);
                return failed(format!(
                    "after {limit:?} there are {count} slices of {name}, no complete pools with devices"
                ));
            }
            sleep(LOOK).await;
        }
    }
}

/// Pools and names of all devices in slices.
pub(crate) fn devices_in(slices: &[ResourceSlice]) -> BTreeSet<(&str, &str)> {
    let mut all = BTreeSet::new();
    for slice in slices {
        let pool = slice.spec.pool.name.as_str();
        all.extend(slice.spec.devices.iter().flatten().map(|it| (pool, it.name.as_str())));
    }
    all
}

/// True if all slices of the pool's generation exist.
fn is_complete(slice: &ResourceSlice, all: &[ResourceSlice]) -> bool {
    let same = |it: &&ResourceSlice| it.spec.pool == slice.spec.pool;
    i64::try_from(all.iter().filter(same).count()) == Ok(slice.spec.pool.resource_slice_count)
}

fn registration(event: &Event) -> Option<(&str, &Path, Service)> {
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

async fn reached(name: &str, endpoint: &Path, service: Service) -> Result<Driver, Unmet> {
    if service != Service::V1 {
        return not_applicable(format!("{name} speaks {service} only, and the cases v1"));
    }
    match dialled(endpoint).await {
        Ok(channel) => Ok(Driver {
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            client: DraPluginClient::new(channel),
        }),
        Err(error) => failed(format!("{name}: {error}")),
    }
}

//! Who holds which device, asked from the kubelet's pod resources API when somebody wants to know.
//!
//! The kubelet turns callers away that ask too often, so an answer serves for a while. One that cannot
//! be had costs the labels of pods, not the metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_kubelet_api::{
    podresources::{
        self, ListPodResourcesRequest, PodResources,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::{SocketError, SocketPath},
};

use crate::causes;

/// What is known of the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// Whether the kubelet answered when it was last asked; `None` before it was asked.
    pub(crate) answered: Option<Result<(), String>>,
    /// The containers that hold a device, or a replica of it.
    pub(crate) by_device: ByDevice,
    /// How many pods the kubelet told of, with devices and without.
    pub(crate) pods: usize,
}

/// The containers that hold each device.
pub(crate) type ByDevice = BTreeMap<DeviceId, BTreeSet<Holder>>;

/// A container with a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) resource: String,
    /// Which replica of a shared device.
    pub(crate) replica: Option<u32>,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

/// The one who asks the kubelet.
pub(crate) struct Inquirer {
    socket: PathBuf,
    requests: mpsc::Receiver<oneshot::Sender<()>>,
    publish: watch::Sender<Arc<Holders>>,
    asked: Option<Instant>,
    answered: Option<Instant>,
}

/// How others have the kubelet asked.
#[derive(Clone, Debug)]
pub(crate) struct HoldersDesk {
    requests: mpsc::Sender<oneshot::Sender<()>>,
    holders: watch::Receiver<Arc<Holders>>,
}

/// Why the kubelet did not say.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the kubelet refused to list pod resources: {}", .0.message())]
    Refused(#[from] tonic::Status),
    #[error("the kubelet did not list pod resources within {DEADLINE:?}")]
    Late,
}

/// How long an answer serves. Prometheus asks every 15 seconds or more; several scrapers share one.
const SERVES: Duration = Duration::from_secs(5);

/// How long the kubelet may take; a scrape waits for it, and usually for ten seconds at most.
const DEADLINE: Duration = Duration::from_secs(1);

/// For how long the last answer stands in for one that cannot be had: a kubelet that restarts moves no
/// device, one that stays away may have been replaced with its pods.
const STANDS_IN: Duration = Duration::from_secs(60);

/// Scrapes that wait for the same answer.
const WAITING: usize = 16;

/// Makes the one who asks, and the way to have it asked.
pub(crate) fn inquiry(kubelet_dir: &Path) -> (Inquirer, HoldersDesk) {
    let socket = kubelet_dir.join(podresources::DIR).join(podresources::SOCKET);
    let (ask, requests) = mpsc::channel(WAITING);
    let (publish, holders) = watch::channel(Arc::default());
    let inquirer = Inquirer { socket, requests, publish, asked: None, answered: None };
    (inquirer, HoldersDesk { requests: ask, holders })
}

// === impl Holders ===

impl Holders {
    /// Whether a container holds that id of that resource.
    pub(crate) fn holds(&self, resource: &str, id: &str) -> bool {
        let (device, replica) = parts_of(id);
        let is_it = |holder: &Holder| holder.resource == resource && holder.replica == replica;
        self.by_device.get(device).is_some_and(|holders| holders.iter().any(is_it))
    }
}

// === impl HoldersDesk ===

impl HoldersDesk {
    /// Has the kubelet asked, unless it was a moment ago; returns when the answer is published, or is
    /// not to be had.
    pub(crate) async fn refresh(&self) {
        let (done, wait) = oneshot::channel();
        if self.requests.send(done).await.is_ok() {
            // An inquirer that ends leaves what was known.
            let _ = wait.await;
        }
    }

    pub(crate) fn holders(&self) -> watch::Receiver<Arc<Holders>> {
        self.holders.clone()
    }
}

// === impl Inquirer ===

impl Inquirer {
    /// Asks the kubelet when wanted, until stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let request = tokio::select! {
                () = stop.cancelled() => return,
                request = self.requests.recv() => request,
            };
            let Some(done) = request else { return stop.cancelled().await };
            if self.asked.is_none_or(|asked| asked.elapsed() >= SERVES) {
                self.ask().await;
            }
            // A scrape that was given up waits no longer.
            let _ = done.send(());
        }
    }

    async fn ask(&mut self) {
        let answer = timeout(DEADLINE, list(&self.socket)).await.unwrap_or(Err(AskError::Late));
        self.asked = Some(Instant::now());
        let holders = match answer {
            Ok((by_device, pods)) => {
                self.answered = self.asked;
                Holders { answered: Some(Ok(())), by_device, pods }
            }
            Err(error) => self.stand_in(causes(&error)),
        };
        self.publish.send_replace(Arc::new(holders));
    }

    /// What is told in place of an answer.
    fn stand_in(&self, why: String) -> Holders {
        let known = self.publish.borrow().clone();
        if known.answered.as_ref().is_none_or(Result::is_ok) {
            tracing::warn!(why, "the kubelet does not tell who holds what");
        }
        let recent = self.answered.is_some_and(|answered| answered.elapsed() < STANDS_IN);
        let by_device = if recent { known.by_device.clone() } else { ByDevice::new() };
        Holders { answered: Some(Err(why)), by_device, pods: 0 }
    }
}

/// Dialled anew each time: the socket is another one after a restart of the kubelet.
async fn list(socket: &Path) -> Result<(ByDevice, usize), AskError> {
    let channel = SocketPath::new(socket)?.dial().await?;
    let answer = PodResourcesListerClient::new(channel).list(ListPodResourcesRequest {}).await?;
    let pods = answer.into_inner().pod_resources;
    let count = pods.len();
    Ok((by_device(pods), count))
}

/// The kubelet repeats a device for each of its NUMA nodes.
fn by_device(pods: Vec<PodResources>) -> ByDevice {
    let mut all = ByDevice::new();
    for pod in pods {
        for container in pod.containers {
            for devices in container.devices {
                for id in &devices.device_ids {
                    let (device, replica) = parts_of(id);
                    let Ok(device) = device.parse() else { continue };
                    let holder = Holder {
                        resource: devices.resource_name.clone(),
                        replica,
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        container: container.name.clone(),
                    };
                    all.entry(device).or_default().insert(holder);
                }
            }
        }
    }
    all
}

/// The device and the number in the id of a replica; else the id is the device.
fn parts_of(id: &str) -> (&str, Option<u32>) {
    ReplicaId::split(id).map_or((id, None), |(device, number)| (device, Some(number)))
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_api::podresources::{ContainerDevices, ContainerResources};

    use super::*;

    fn pod(name: &str, ids: &[&str]) -> PodResources {
        let devices = ids.iter().map(|id| ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: vec![(*id).to_owned()],
            topology: None,
        });
        let container = ContainerResources {
            name: "main".to_owned(),
            devices: devices.collect(),
            ..ContainerResources::default()
        };
        PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![container],
        }
    }

    #[test]
    fn replicas_lead_to_their_device_and_a_device_on_two_nodes_is_held_once() {
        let held = by_device(vec![
            pod("whole", &["GPU-a", "GPU-a"]),
            pod("left", &["GPU-b::0"]),
            pod("right", &["GPU-b::11"]),
        ]);
        let shown = |id: &str| {
            let holders = held[id].iter();
            holders.map(|holder| (&*holder.pod, holder.replica)).collect::<Vec<_>>()
        };
        assert_eq!(shown("GPU-a"), [("whole", None)]);
        assert_eq!(shown("GPU-b"), [("left", Some(0)), ("right", Some(11))]);
    }

    #[test]
    fn only_a_number_after_two_colons_is_a_replica() {
        assert_eq!(parts_of("GPU-a::7"), ("GPU-a", Some(7)));
        for whole in ["GPU-a", "GPU-a::", "GPU-a::x", "0000:1b:00.0"] {
            assert_eq!(parts_of(whole), (whole, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_is_away_is_said_and_what_it_told_stands_in_for_a_minute() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut inquirer, desk) = inquiry(folder.path());
        let known = by_device(vec![pod("p", &["GPU-a"])]);
        let told = Holders { answered: Some(Ok(())), by_device: known.clone(), pods: 1 };
        inquirer.publish.send_replace(Arc::new(told));
        inquirer.answered = Some(Instant::now());
        inquirer.ask().await;
        let holders = desk.holders().borrow().clone();
        let why = holders.answered.clone().expect("asked").expect_err("away");
        assert!(why.contains("pod-resources/kubelet.sock"), "{why}");
        assert_eq!(holders.by_device, known);
        tokio::time::advance(STANDS_IN).await;
        inquirer.ask().await;
        assert!(desk.holders().borrow().by_device.is_empty());
    }
}

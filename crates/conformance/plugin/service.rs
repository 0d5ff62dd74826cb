//! gRPC service of the test plugin, with the defects of its calls.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedMutexGuard, mpsc, watch},
    time::sleep,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};
use windlass_kubelet_api::deviceplugin::{self as wire, device_plugin_server::DevicePlugin};

use crate::{defect::Defect, devices::Devices};

/// Service of one resource.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) devices: Devices,
    pub(crate) defect: Defect,
    /// True if a device is broken, and the number of registrations.
    pub(crate) health_and_registration: watch::Sender<(bool, usize)>,
    /// Number of open streams.
    pub(crate) streams: watch::Sender<usize>,
    opened_streams: AtomicUsize,
    options_calls: AtomicUsize,
    newest_stream: watch::Sender<usize>,
    granted_ids: Mutex<BTreeSet<String>>,
    leaked_memory: Mutex<Vec<Vec<u8>>>,
    call_lock: Arc<tokio::sync::Mutex<()>>,
}

/// Guard that exits the process if it is dropped while its field is true: when a call is cancelled.
struct ExitGuard(bool);

type Lists = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

/// Delay that exceeds the time limit of each call.
const OVERLONG_DELAY: Duration = Duration::from_secs(30);

// === impl ExitGuard ===

impl Drop for ExitGuard {
    fn drop(&mut self) {
        if self.0 {
            std::process::exit(1);
        }
    }
}

// === impl Service ===

impl Service {
    pub(crate) fn new(devices: Devices, defect: Defect) -> Self {
        let shared = Shared {
            devices,
            defect,
            health_and_registration: watch::Sender::new((false, 0)),
            streams: watch::Sender::new(0),
            opened_streams: AtomicUsize::new(0),
            options_calls: AtomicUsize::new(0),
            newest_stream: watch::Sender::new(0),
            granted_ids: Mutex::default(),
            leaked_memory: Mutex::default(),
            call_lock: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn leak(&self, bytes: usize) {
        self.shared
            .leaked_memory
            .lock()
            .expect("no holder of the lock panics")
            .push(vec![1; bytes]);
    }

    /// Ids that the current list contains.
    fn listed_ids(&self) -> Vec<String> {
        self.shared.devices.ids(self.shared.health_and_registration.borrow().1)
    }

    fn allocate_container(
        &self,
        ids: &[String],
    ) -> Result<wire::ContainerAllocateResponse, Status> {
        let (defect, listed) = (self.shared.defect, self.listed_ids());
        if ids.is_empty() && defect == Defect::ExitsOnEmptyRequests {
            std::process::exit(1);
        }
        let mut allocated = Vec::new();
        for id in ids {
            match (listed.contains(id), defect) {
                (true, _) | (false, Defect::GrantsAnything) => allocated.push(id.clone()),
                (false, Defect::GrantsWhatItKnows) => {}
                (false, _) => {
                    return Err(Status::invalid_argument(format!("unknown device {id:.63}")));
                }
            }
        }
        if defect == Defect::AllocatesOnce {
            let mut granted = self.shared.granted_ids.lock().expect("no holder of the lock panics");
            if allocated.iter().any(|id| !granted.insert(id.clone())) {
                return Err(Status::already_exists("allocated"));
            }
        }
        if defect != Defect::CountsTwice {
            let mut unique = BTreeSet::new();
            allocated.retain(|id| unique.insert(id.clone()));
        }
        Ok(self.shared.devices.grant(&allocated))
    }

    fn preferred_ids(&self, request: &wire::ContainerPreferredAllocationRequest) -> Vec<String> {
        let defect = self.shared.defect;
        let wire::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: size,
        } = request;
        let size = usize::try_from(*size).unwrap_or(0);
        let is_odd = size == 0 || size > available.len() || must_include.len() > size;
        let is_known =
            available.iter().chain(must_include).all(|id| self.listed_ids().contains(id));
        let is_odd = is_odd || !is_known || must_include.iter().any(|id| !available.contains(id));
        if is_odd && defect == Defect::ExitsOnInvalidPreferenceRequests {
            std::process::exit(1);
        }
        if defect == Defect::PrefersTheUnavailable {
            return self.listed_ids().into_iter().take(size).collect();
        }
        let mut other_ids = available.clone();
        if defect != Defect::PrefersByOrder {
            other_ids.sort();
        }
        let must_include =
            if defect == Defect::IgnoresMustInclude { &Vec::new() } else { must_include };
        other_ids.retain(|id| !must_include.contains(id));
        let size = if defect == Defect::PrefersTooFew { size.saturating_sub(1) } else { size };
        must_include.iter().cloned().chain(other_ids).take(size).collect()
    }

    async fn lock_calls(&self) -> Option<OwnedMutexGuard<()>> {
        match self.shared.defect {
            Defect::UnreadStreamBlocks => {
                Some(Arc::clone(&self.shared.call_lock).lock_owned().await)
            }
            _ => None,
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Lists;

    async fn get_device_plugin_options(
        &self,
        _request: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        let earlier_calls = self.shared.options_calls.fetch_add(1, Ordering::Relaxed);
        let is_changed = earlier_calls > 0 && self.shared.defect == Defect::ChangesItsOptions;
        Ok(Response::new(wire::DevicePluginOptions {
            pre_start_required: !is_changed,
            get_preferred_allocation_available: true,
        }))
    }

    async fn list_and_watch(
        &self,
        _request: Request<wire::Empty>,
    ) -> Result<Response<Lists>, Status> {
        let lock_turn = self.lock_calls().await;
        let (shared, number) =
            (Arc::clone(&self.shared), self.shared.opened_streams.fetch_add(1, Ordering::Relaxed));
        if shared.defect == Defect::LeaksStreams {
            self.leak(32 * 1024);
        }
        shared.newest_stream.send_replace(number);
        let (sender, lists) = mpsc::channel(1);
        tokio::spawn(async move {
            let _turn = lock_turn;
            shared.streams.send_modify(|count| *count += 1);
            send_lists(&shared, number, sender).await;
            shared.streams.send_modify(|count| *count -= 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(lists))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        if self.shared.defect == Defect::SlowPreference {
            sleep(OVERLONG_DELAY).await;
        }
        let mut container_requests = request.into_inner().container_requests;
        if self.shared.defect == Defect::AnswersTheFirstContainerOnly {
            container_requests.truncate(1);
        }
        let respond = |request: &wire::ContainerPreferredAllocationRequest| {
            wire::ContainerPreferredAllocationResponse { device_i_ds: self.preferred_ids(request) }
        };
        let container_responses = container_requests.iter().map(respond).collect();
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let defect = self.shared.defect;
        let mut exit_guard = ExitGuard(defect == Defect::ExitsOnCancelledCalls);
        tokio::task::yield_now().await;
        let _turn = self.lock_calls().await;
        let _guard = match defect {
            Defect::OneCallAtATime => {
                let call_guard = self
                    .shared
                    .call_lock
                    .try_lock()
                    .map_err(|_| Status::resource_exhausted("busy"))?;
                sleep(Duration::from_millis(5)).await;
                Some(call_guard)
            }
            _ => None,
        };
        if defect == Defect::HangsInAllocate {
            sleep(OVERLONG_DELAY).await;
        }
        if defect == Defect::LeaksMemory {
            self.leak(16 * 1024);
        }
        let mut container_requests = request.into_inner().container_requests;
        if container_requests.is_empty() && defect == Defect::ExitsOnEmptyRequests {
            std::process::exit(1);
        }
        if defect == Defect::AnswersTheFirstContainerOnly {
            container_requests.truncate(1);
        }
        let split = |ids: Vec<String>| match defect {
            Defect::AnswersPerDevice => ids.into_iter().map(|id| vec![id]).collect(),
            _ => vec![ids],
        };
        let containers: Vec<_> =
            container_requests.into_iter().flat_map(|request| split(request.devices_ids)).collect();
        let container_responses =
            containers.iter().map(|ids| self.allocate_container(ids)).collect::<Result<_, _>>()?;
        exit_guard.0 = false;
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        match self.shared.defect {
            Defect::FailsBeforeStarts => Err(Status::internal("not now")),
            _ => Ok(Response::new(wire::PreStartContainerResponse {})),
        }
    }
}

/// Sends the list at each change, until the stream closes.
async fn send_lists(
    shared: &Shared,
    number: usize,
    sender: mpsc::Sender<Result<wire::ListAndWatchResponse, Status>>,
) {
    let (mut state, mut newest) =
        (shared.health_and_registration.subscribe(), shared.newest_stream.subscribe());
    let defect = shared.defect;
    let sends_changes = defect != Defect::ReportsHealthOnFirstStreamOnly || number == 0;
    let sends_when_idle = defect == Defect::SendsListsWhenIdle;
    let ends_old_streams = defect == Defect::OneStreamAtATime;
    loop {
        let (is_broken, registration) = *state.borrow_and_update();
        let devices = shared.devices.list(registration, is_broken);
        if sender.send(Ok(wire::ListAndWatchResponse { devices })).await.is_err() {
            return;
        }
        tokio::select! {
            changed = state.changed(), if sends_changes => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep(Duration::from_millis(50)), if sends_when_idle => {}
            () = sender.closed() => return,
            _ = newest.wait_for(|newest| *newest > number), if ends_old_streams => return,
        }
    }
}

//! Event sets: registrations for events, and waits for the next matching entry of the machine's event log.

use std::{
    collections::BTreeMap,
    ffi::{c_uint, c_ulonglong},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    Model,
    state::{Event, EventKind, Gpu},
};

use crate::{
    abi::Out,
    handle::Device,
    library,
    status::{NvmlResult, Status},
    watch::Generation,
};

/// Value of `gpuInstanceId` and `computeInstanceId` for an event of the whole GPU.
const WHOLE_GPU: c_uint = 0xffff_ffff;

/// Infinite timeout.
const NO_TIMEOUT: c_uint = 0xffff_ffff;

/// All event sets that are not freed, by handle.
static SETS: Mutex<BTreeMap<usize, Arc<EventSet>>> = Mutex::new(BTreeMap::new());

/// Lock that waits take shared. The other calls about event sets take it exclusively, so they block during every wait.
/// The real library spins instead (driver 580).
static WAIT_LOCK: RwLock<()> = RwLock::new(());

/// `nvmlEventSet_t`: a number in pointer form, never dereferenced.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct EventSetHandle(sys::nvmlEventSet_t);

/// `nvmlEventData_t` of version 1 of the function: without instances.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventDataV1 {
    device: sys::nvmlDevice_t,
    event_type: c_ulonglong,
    event_data: c_ulonglong,
}

/// Event set. Several threads may wait on a set; each event goes to one of them.
#[derive(Default)]
struct EventSet {
    registrations: Mutex<Registrations>,
}

/// Registrations of a set by GPU number, and the sequence number of the last delivered event.
#[derive(Default)]
struct Registrations {
    gpus: BTreeMap<u32, Vec<Registration>>,
    delivered: u64,
}

struct Registration {
    types: c_ulonglong,
    /// Sequence number of the last event before the registration.
    since: u64,
}

export! {
    fn nvmlEventSetCreate(set: Out<EventSetHandle>) {
        library::current_model()?;
        set.check()?;
        let _exclusive = WAIT_LOCK.write().unwrap_or_else(PoisonError::into_inner);
        set.put(create_set())
    }

    fn nvmlEventSetFree(set: EventSetHandle) {
        library::current_model()?;
        let _exclusive = WAIT_LOCK.write().unwrap_or_else(PoisonError::into_inner);
        let removed = SETS.lock().unwrap_or_else(PoisonError::into_inner).remove(&set.0.addr());
        removed.map(drop).ok_or(Status::INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes(device: Device, types: Out<c_ulonglong>) {
        let gpu = device.gpu()?;
        types.put(supported_types(&gpu))
    }

    fn nvmlDeviceRegisterEvents(device: Device, types: c_ulonglong, set: EventSetHandle) {
        let gpu = device.gpu()?;
        let set = set.find()?;
        if types & !supported_types(&gpu) != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let _exclusive = WAIT_LOCK.write().unwrap_or_else(PoisonError::into_inner);
        // Events before the registration are lost, including events during waits that delay this call.
        set.register(gpu.number, types, library::current_model()?.events.last());
        Ok(())
    }

    fn nvmlEventSetWait_v2(
        set: EventSetHandle,
        data: Out<sys::nvmlEventData_t>,
        timeout_ms: c_uint,
    ) {
        data.check()?;
        data.put(set.wait(timeout_ms)?)
    }

    fn nvmlEventSetWait(set: EventSetHandle, data: Out<EventDataV1>, timeout_ms: c_uint) {
        data.check()?;
        let sys::nvmlEventData_t { device, eventType, eventData, .. } = set.wait(timeout_ms)?;
        data.put(EventDataV1 { device, event_type: eventType, event_data: eventData })
    }
}

fn create_set() -> EventSetHandle {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    SETS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::default());
    EventSetHandle(std::ptr::without_provenance_mut(handle))
}

/// Frees every set, on the last `nvmlShutdown`.
pub(crate) fn free_all_sets() {
    SETS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Event types that a card supports. A card without ECC lacks the ECC types.
fn supported_types(gpu: &Gpu) -> c_ulonglong {
    let ecc = sys::nvmlEventTypeSingleBitEccError | sys::nvmlEventTypeDoubleBitEccError;
    let always =
        sys::nvmlEventTypePState | sys::nvmlEventTypeXidCriticalError | sys::nvmlEventTypeClock;
    c_ulonglong::from(if gpu.card.ecc { always | ecc } else { always })
}

fn type_and_data(kind: EventKind) -> (c_ulonglong, c_ulonglong) {
    match kind {
        EventKind::Xid(code) => (sys::nvmlEventTypeXidCriticalError.into(), code),
        EventKind::DoubleBitEcc => (sys::nvmlEventTypeDoubleBitEccError.into(), 0),
    }
}

// === impl EventSetHandle ===

impl EventSetHandle {
    fn find(self) -> NvmlResult<Arc<EventSet>> {
        let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.get(&self.0.addr()).cloned().ok_or(Status::INVALID_ARGUMENT)
    }

    fn wait(self, timeout_ms: c_uint) -> NvmlResult<sys::nvmlEventData_t> {
        library::current_model()?;
        let timeout = Duration::from_millis(timeout_ms.into());
        let _wait = WAIT_LOCK.read().unwrap_or_else(PoisonError::into_inner);
        self.find()?.wait((timeout_ms != NO_TIMEOUT).then(|| Instant::now() + timeout))
    }
}

// === impl EventSet ===

impl EventSet {
    fn register(&self, gpu: u32, types: c_ulonglong, since: u64) {
        let mut registrations = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.gpus.entry(gpu).or_default().push(Registration { types, since });
    }

    /// Next event, or a timeout. The `Generation` is taken before the read of the log, so an event between the read and
    /// the wait ends the wait at once.
    fn wait(&self, deadline: Option<Instant>) -> NvmlResult<sys::nvmlEventData_t> {
        loop {
            let generation = Generation::current()?;
            let model = library::current_model()?;
            if let Some(result) = self.next(&model) {
                return result;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Status::TIMEOUT);
            }
            generation.wait(deadline)?;
        }
    }

    /// Next event, if there is one. While a GPU of the set is lost, every call returns only that error, as in the real
    /// library. Events of the other GPUs remain queued.
    fn next(&self, model: &Model) -> Option<NvmlResult<sys::nvmlEventData_t>> {
        let mut registrations = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        if registrations.any_lost(model) {
            return Some(Err(Status::GPU_IS_LOST));
        }
        let (event, gpu) = registrations.next_event(model)?;
        registrations.delivered = event.sequence;
        Some(Ok(event_data(event, gpu)))
    }
}

// === impl Registrations ===

impl Registrations {
    fn next_event<'a>(&self, model: &'a Model) -> Option<(&'a Event, &'a Gpu)> {
        model.events.after(self.delivered).find_map(|event| {
            let (kind, _) = type_and_data(event.kind);
            let is_match = |registration: &Registration| {
                registration.types & kind != 0 && event.sequence > registration.since
            };
            let is_registered = self.gpus.get(&event.gpu)?.iter().any(is_match);
            is_registered.then_some((event, model.gpu(event.gpu)?))
        })
    }

    /// True if a GPU of the set is off the bus or removed.
    fn any_lost(&self, model: &Model) -> bool {
        let is_lost = |number: &u32| model.gpu(*number).is_none_or(|gpu| gpu.faults.lost);
        self.gpus.keys().any(is_lost)
    }
}

fn event_data(event: &Event, gpu: &Gpu) -> sys::nvmlEventData_t {
    let (event_type, event_data) = type_and_data(event.kind);
    let (gpu_instance, compute_instance) = event.instance.unwrap_or((WHOLE_GPU, WHOLE_GPU));
    sys::nvmlEventData_t {
        device: Device::of_gpu(gpu).raw(),
        eventType: event_type,
        eventData: event_data,
        gpuInstanceId: gpu_instance,
        computeInstanceId: compute_instance,
    }
}

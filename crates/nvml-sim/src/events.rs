//! Event sets: waiting for what the machine's event log says next.

use std::{
    collections::BTreeMap,
    ffi::{c_uint, c_ulonglong},
    sync::{
        Arc, Mutex, PoisonError,
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
    status::{Answer, Status},
    watch::Watch,
};

/// Stands for no instance in `gpuInstanceId` and `computeInstanceId`.
const WHOLE_GPU: c_uint = 0xffff_ffff;

/// A timeout that never ends.
const FOR_EVER: c_uint = 0xffff_ffff;

/// Every event set that was created and not freed, by handle.
static SETS: Mutex<BTreeMap<usize, Arc<EventSet>>> = Mutex::new(BTreeMap::new());

/// `nvmlEventSet_t`: a number in the form of a pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Handle(sys::nvmlEventSet_t);

/// `nvmlEventData_t` as version 1 of the function has it: without instances.
#[repr(C)]
#[derive(Clone, Copy)]
struct EventDataV1 {
    device: sys::nvmlDevice_t,
    event_type: c_ulonglong,
    event_data: c_ulonglong,
}

struct EventSet {
    watch: Watch,
    interest: Mutex<Interest>,
}

/// Which events a set waits for, and which it has told.
#[derive(Default)]
struct Interest {
    gpus: BTreeMap<u32, Registration>,
    told: u64,
}

struct Registration {
    types: c_ulonglong,
    /// Events up to this one were before the registration.
    since: u64,
    /// Whether the set was told that the GPU is lost.
    told_lost: bool,
}

export! {
    fn nvmlEventSetCreate(set: Out<Handle>) {
        library::machine()?;
        set.check()?;
        set.put(create()?)
    }

    fn nvmlEventSetFree(set: Handle) {
        library::machine()?;
        let freed = SETS.lock().unwrap_or_else(PoisonError::into_inner).remove(&set.0.addr());
        freed.map(drop).ok_or(Status::INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes(device: Device, types: Out<c_ulonglong>) {
        let gpu = device.gpu()?;
        types.put(supported(&gpu))
    }

    fn nvmlDeviceRegisterEvents(device: Device, types: c_ulonglong, set: Handle) {
        let gpu = device.gpu()?;
        let set = set.find()?;
        if types & !supported(&gpu) != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        set.register(gpu.number, types, gpu.machine().events.last());
        Ok(())
    }

    fn nvmlEventSetWait_v2(set: Handle, data: Out<sys::nvmlEventData_t>, timeout_ms: c_uint) {
        data.check()?;
        data.put(set.wait(timeout_ms)?)
    }

    fn nvmlEventSetWait(set: Handle, data: Out<EventDataV1>, timeout_ms: c_uint) {
        data.check()?;
        let sys::nvmlEventData_t { device, eventType, eventData, .. } = set.wait(timeout_ms)?;
        data.put(EventDataV1 { device, event_type: eventType, event_data: eventData })
    }
}

fn create() -> Answer<Handle> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let watch = Watch::new(&library::folder()?)?;
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    let set = EventSet { watch, interest: Mutex::default() };
    SETS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(set));
    Ok(Handle(std::ptr::without_provenance_mut(handle)))
}

/// What a card can tell; cards without ECC cannot tell about ECC.
fn supported(gpu: &Gpu) -> c_ulonglong {
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

// === impl Handle ===

impl Handle {
    fn find(self) -> Answer<Arc<EventSet>> {
        let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.get(&self.0.addr()).cloned().ok_or(Status::INVALID_ARGUMENT)
    }

    fn wait(self, timeout_ms: c_uint) -> Answer<sys::nvmlEventData_t> {
        library::machine()?;
        let timeout = Duration::from_millis(timeout_ms.into());
        self.find()?.wait((timeout_ms != FOR_EVER).then(|| Instant::now() + timeout))
    }
}

// === impl EventSet ===

impl EventSet {
    fn register(&self, gpu: u32, types: c_ulonglong, since: u64) {
        let mut interest = self.interest.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Registration { types: 0, since, told_lost: false };
        interest.gpus.entry(gpu).or_insert_with(new).types |= types;
    }

    /// The next event, or a time-out. The folder is watched since before the log is read, so an
    /// event between reading and waiting ends the wait at once.
    fn wait(&self, deadline: Option<Instant>) -> Answer<sys::nvmlEventData_t> {
        loop {
            self.watch.forget();
            let machine = library::machine()?;
            if let Some(told) = self.next(&machine) {
                return told;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Status::TIMEOUT);
            }
            self.watch.wait(left)?;
        }
    }

    /// What is to be told now: events in their order, then once that a GPU was lost.
    fn next(&self, machine: &Model) -> Option<Answer<sys::nvmlEventData_t>> {
        let mut interest = self.interest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((event, gpu)) = interest.next_event(machine) {
            interest.told = event.sequence;
            return Some(Ok(data(event, gpu)));
        }
        interest.newly_lost(machine).then_some(Err(Status::GPU_IS_LOST))
    }
}

// === impl Interest ===

impl Interest {
    fn next_event<'a>(&self, machine: &'a Model) -> Option<(&'a Event, &'a Gpu)> {
        machine.events.after(self.told).find_map(|event| {
            let wanted = self.gpus.get(&event.gpu)?;
            let (kind, _) = type_and_data(event.kind);
            let fits = wanted.types & kind != 0 && event.sequence > wanted.since;
            fits.then_some((event, machine.gpu(event.gpu)?))
        })
    }

    /// Whether a GPU is lost that was not when last told.
    fn newly_lost(&mut self, machine: &Model) -> bool {
        for (number, registration) in &mut self.gpus {
            let lost = machine.gpu(*number).is_none_or(|gpu| gpu.faults.lost);
            if std::mem::replace(&mut registration.told_lost, lost) != lost && lost {
                return true;
            }
        }
        false
    }
}

fn data(event: &Event, gpu: &Gpu) -> sys::nvmlEventData_t {
    let (event_type, event_data) = type_and_data(event.kind);
    sys::nvmlEventData_t {
        device: Device::of_gpu(gpu).raw(),
        eventType: event_type,
        eventData: event_data,
        gpuInstanceId: WHOLE_GPU,
        computeInstanceId: WHOLE_GPU,
    }
}

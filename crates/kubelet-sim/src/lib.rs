//! The embedded kubelet: the device manager and the DRA manager of a real one, small enough to live in a
//! test.
//!
//! ```text
//!  plugin ──Register──> registration ──┐
//!  plugin <─ListAndWatch── connection ─┤     one task owns the Manager;
//!  plugin <─Allocate────── admission ──┼──> desk (functions sent over a channel)
//!  tools  <─List────────── podresources┤       │
//!  driver <─GetInfo, Notify── dra ─────┤       ├──> watch: NodeStatus
//!  driver <─(Un)Prepare────── dra ─────┘       ├──> log of Events
//!                                              ├──> kubelet_internal_checkpoint
//!                                              └──> dra_manager_state
//! ```
//!
//! It answers as Kubernetes 1.36 does, to the letter of its error texts, and can be restarted and
//! made to misbehave. `tests/fidelity` holds it against what a real kubelet did. Where it differs from the
//! real one, on purpose:
//!
//! - Node status is visible at once; the real one sends it every 10 s, and looks for expired
//!   plugins then. Pod status follows each change; the real one computes it when it syncs a pod.
//! - Go walks its maps in random order. Here resources, devices and choices are in order of their
//!   names, so that a test fails twice the same way.
//! - A pod that is rejected after a reboot has let go at once; the real one counts it as active, a moment
//!   longer, until it has looked after what ran of it before.
//! - A nil dereference in the real kubelet is [`Condition::Panicked`] and [`Event::Panicked`]: the
//!   kubelet stops serving as a dead process would, and the test goes on.
//! - No container runtime, no scheduler, no CPU and memory managers: topology hints come from
//!   devices alone, and containers run when told ([`Kubelet::start_container`]).
//! - While a plugin registers, its socket is dialled again every second, as gRPC does, but the first
//!   times much sooner.
//! - A health change syncs its pods at once. The real one hands them to the pod workers through a
//!   channel of 100 and drops what does not fit; here nothing is dropped, because nothing is slow.
//! - Claims come with their pod: there is no API server to read them from, so whether a claim is
//!   allocated, reserved for the pod and owned by it is not checked. A pod's claims are prepared when its
//!   first container is started, or by [`Kubelet::sync_pod`]; a failure is tried again when that is
//!   called again. A deleted pod is gone at once, whether its claims were released or not; one that
//!   finished stays until they are.
//! - The folder of registrations is looked at when it changes; the real one looks once a second. A
//!   socket that is renamed away is gone here, and stays registered there. Only DRA drivers register.
//! - A DRA driver's lost connection is made again by the next call or health stream; gRPC tries each
//!   second or so. What such a call fails with is in the words of tonic.
//! - `ResourceSlices` are not deleted, for want of an API server: [`Event::SlicesWiped`] says when.
//! - The health of devices is not remembered over a restart (`dra_health_state`).
//! - Left out: CSI plugins, pod resources `v1alpha1`, in-place resize, the topology manager's policy
//!   options, the retry of a failed container start.
//! - The text of a stopped endpoint has the resource's name where Go prints a struct with addresses.
//! - [`Release::From1_37`] follows the merged change that keys plugins by name and socket; its
//!   details beyond that are deduced.

pub mod authority;
pub mod grant;
pub mod pod;
pub mod topology;

mod admission;
mod checkpoint;
mod config;
mod desk;
mod device;
mod directory;
mod dra;
mod event;
mod fault;
mod kubelet;
mod manager;
mod plugin;
mod podresources;
mod registration;
mod severable;
mod start;
mod status;

pub use admission::{Admission, Allotment, ContainerAdmission, Question, Reason, Rejection};
pub use checkpoint::ClaimsFileError;
pub use config::{Cleanup, Config, Release};
pub use device::{Device, DeviceIds};
pub use directory::DirectoryError;
pub use dra::{
    ClaimCall, ClaimDeviceHealth, ClaimId, ClaimOrigin, ClaimStatus, ClaimUse, DraLimits,
    DriverStatus, HealthWord, PodClaim, PreparedDevice, Service,
};
pub use event::{Calls, Event};
pub use fault::{ClaimFault, Misbehaviour, PodFault, RegistrationFault, StreamFault};
pub use grant::Grant;
pub use kubelet::{Kubelet, KubeletError, NotInTime, SyncError};
pub use pod::{Container, InitContainer, InitRole, Pod};
pub use start::StartError;
pub use status::{
    Condition, ContainerStatus, Health, NodeStatus, PluginOptions, PodPhase, PodStatus,
    Registration, ResourceStatus,
};
pub use topology::{TopologyPolicy, TopologyScope};

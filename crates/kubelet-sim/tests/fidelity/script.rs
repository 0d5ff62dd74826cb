//! Scripts of the comparison: sequences of steps with plugins, pods and the kubelet.

use std::fmt;

use windlass_kubelet_sim::{Container, Pod};

/// A sequence of steps, run on a kubelet without earlier registrations.
pub(crate) struct Script {
    /// Name of the script and of its transcript.
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

/// One step. Names identify plugins and pods.
///
/// A list of devices has the form `d0 d1! d2? d3@0,1 d4@`. `!` marks the health `Unhealthy`, and `?` a
/// health that is neither `Healthy` nor `Unhealthy`. NUMA nodes follow `@`.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A plugin binds its socket, or replaces it.
    Serve { plugin: &'static str, resource: &'static str, requested_call: OptionalCall },
    /// The plugin registers its own resource.
    Register(&'static str),
    /// The plugin registers as another resource, or in another version.
    RegisterAs { plugin: &'static str, resource: &'static str, version: &'static str },
    /// The plugin sends this list on all its streams, current and future.
    List(&'static str, &'static str),
    /// The plugin changes its behaviour.
    SetBehaviour(&'static str, Behaviour),
    /// The plugin ends each stream, as a stopping plugin does.
    EndStreams(&'static str),
    /// The plugin's process ends, and its socket is removed.
    Kill(&'static str),
    /// Waits until the plugin has this many open streams.
    WaitForStreams(&'static str, usize),
    /// Waits until `GetAllocatableResources` has these devices of a resource. A device has one entry per
    /// NUMA node.
    WaitForHealthy(&'static str, &'static str),
    /// A pod is bound to the node. The kubelet retries a container that fails to start.
    Run(Pod),
    /// A container ends, and the kubelet starts it again.
    RestartContainer(&'static str, &'static str),
    /// A pod is deleted, and its containers end.
    Delete(&'static str),
    /// Waits until a container's status has this health of its devices.
    WaitForHealth { pod: &'static str, container: &'static str, health: &'static str },
    /// Reads capacity and allocatable of the node.
    Count,
    /// Calls `Get` of the pod resources API for one pod.
    Get(&'static str),
    /// The kubelet's process ends. Containers continue.
    StopKubelet,
    /// All containers and sandboxes end while the kubelet is stopped, as in a reboot of the node.
    EndContainers,
    /// One byte of the kubelet's checkpoint changes.
    BreakCheckpoint,
    /// The kubelet's process starts again.
    StartKubelet,
}

/// Optional call that a plugin requests in its answer to `GetDevicePluginOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionalCall {
    None,
    Preference,
    PreStart,
}

/// Behaviour of a plugin. Transcripts contain the names of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// The plugin answers correctly. It prefers the first devices by name.
    Right,
    OptionsFail,
    AllocateFails,
    /// `Allocate` returns no container response.
    AllocatesNothing,
    /// `GetPreferredAllocation` returns one unknown device.
    PrefersUnknown,
    PreferenceFails,
    /// The next `PreStartContainer` fails; later ones succeed.
    PreStartFailsOnce,
}

// === impl Step ===

impl Step {
    /// True if all effects of the step have occurred when it returns. After the other steps, the script
    /// has a step that waits for the effects.
    pub(crate) fn is_complete(&self) -> bool {
        !matches!(self, Self::Register(_) | Self::List(..) | Self::EndStreams(_) | Self::Kill(_))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve { plugin, resource, requested_call: OptionalCall::None } => {
                write!(f, "{plugin} serves {resource}")
            }
            Self::Serve { plugin, resource, requested_call } => {
                write!(f, "{plugin} serves {resource} and wants {requested_call:?}")
            }
            Self::Register(plugin) => write!(f, "{plugin} registers"),
            Self::RegisterAs { plugin, resource, version } => {
                write!(f, "{plugin} registers {resource:?} in version {version:?}")
            }
            Self::List(plugin, devices) => write!(f, "{plugin} lists {}", text_or_nothing(devices)),
            Self::SetBehaviour(plugin, behaviour) => write!(f, "{plugin} behaves: {behaviour:?}"),
            Self::EndStreams(plugin) => write!(f, "{plugin} ends its streams"),
            Self::Kill(plugin) => write!(f, "{plugin} dies"),
            Self::WaitForStreams(plugin, count) => write!(f, "{plugin} has {count} streams"),
            Self::WaitForHealthy(resource, ids) => {
                write!(f, "{resource} has {}", text_or_nothing(ids))
            }
            Self::Run(pod) => write!(f, "pod {} ({}) comes: {}", pod.name, pod.uid, requests(pod)),
            Self::RestartContainer(pod, container) => {
                write!(f, "container {container} of {pod} is started again")
            }
            Self::Delete(pod) => write!(f, "pod {pod} is deleted"),
            Self::WaitForHealth { pod, container, health } => {
                write!(f, "status of {container} in {pod}: {}", text_or_nothing(health))
            }
            Self::Count => f.write_str("the node counts"),
            Self::Get(pod) => write!(f, "pod resources are asked for {pod}"),
            Self::StopKubelet => f.write_str("the kubelet ends"),
            Self::EndContainers => f.write_str("all containers end"),
            Self::BreakCheckpoint => f.write_str("the checkpoint is broken"),
            Self::StartKubelet => f.write_str("the kubelet starts"),
        }
    }
}

fn text_or_nothing(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}

/// Describes the containers of a pod with their limits.
fn requests(pod: &Pod) -> String {
    let init_containers =
        pod.init_containers.iter().map(|init| (format!("{:?} ", init.role), &init.container));
    let app_containers = pod.containers.iter().map(|container| (String::new(), container));
    let request = |(role, container): (String, &Container)| {
        let limits: Vec<_> = container
            .limits
            .iter()
            .map(|(resource, count)| format!("{count} {resource}"))
            .collect();
        let limits = if limits.is_empty() { "nothing".to_owned() } else { limits.join(" and ") };
        format!("{role}{} wants {limits}", container.name)
    };
    init_containers.chain(app_containers).map(request).collect::<Vec<_>>().join(", ")
}

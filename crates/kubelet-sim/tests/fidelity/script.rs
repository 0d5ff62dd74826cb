//! Steps of a sequence: plugins, pods and the kubelet.

use std::fmt;

use windlass_kubelet_sim::{Container, Pod};

/// A sequence, played on a kubelet without earlier registrations.
pub(crate) struct Script {
    /// Name of the script and of its transcript.
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

/// One step. Names identify plugins and pods.
///
/// A list of devices is `d0 d1! d2? d3@0,1 d4@`. `!` is an unhealthy device, `?` a device with
/// another word, and NUMA nodes follow `@`.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A plugin binds its socket, or replaces it.
    Serve { plugin: &'static str, resource: &'static str, wants: Wants },
    /// The plugin registers its own resource.
    Register(&'static str),
    /// The plugin registers as another resource, or in another version.
    RegisterAs { plugin: &'static str, resource: &'static str, version: &'static str },
    /// The plugin sends its devices on all streams, future ones too.
    List(&'static str, &'static str),
    /// The plugin changes the manner of its answers.
    Behave(&'static str, Manner),
    /// The plugin ends each stream, as a stopping plugin does.
    EndStreams(&'static str),
    /// The plugin's process dies, and its socket is removed.
    Die(&'static str),
    /// This many streams of the plugin are open by now.
    Streams(&'static str, usize),
    /// `GetAllocatableResources` has these devices of a resource by now, each once for each of its nodes.
    Healthy(&'static str, &'static str),
    /// A pod is bound to the node. A container that fails to start is tried again.
    Run(Pod),
    /// A container ends, and is started again.
    RestartContainer(&'static str, &'static str),
    /// A pod is deleted, and its containers end.
    Delete(&'static str),
    /// A container's status has this health of its devices by now.
    Reports { pod: &'static str, container: &'static str, health: &'static str },
    /// Reads capacity and allocatable of the node.
    Count,
    /// Asks pod resources for one pod.
    Get(&'static str),
    /// The kubelet's process ends, and containers go on.
    StopKubelet,
    /// Each container ends while the kubelet is stopped, and so does each sandbox: the node reboots.
    EndContainers,
    /// One byte of the kubelet's checkpoint changes.
    BreakCheckpoint,
    /// The kubelet's process starts again.
    StartKubelet,
}

/// A plugin's answer to `GetDevicePluginOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Nothing,
    Preference,
    PreStart,
}

/// Manner of a plugin's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Correct answers. The preference is the first devices by name.
    Right,
    OptionsFail,
    AllocateFails,
    /// An answer without a container response.
    AllocatesNothing,
    /// A preference for one unknown device.
    PrefersUnknown,
    PreferenceFails,
    /// The next call fails, and later ones succeed.
    PreStartFailsOnce,
}

// === impl Step ===

impl Step {
    /// True if the step is complete when it returns. Later steps wait for the effects of the others.
    pub(crate) fn is_awaited(&self) -> bool {
        !matches!(self, Self::Register(_) | Self::List(..) | Self::EndStreams(_) | Self::Die(_))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve { plugin, resource, wants: Wants::Nothing } => {
                write!(f, "{plugin} serves {resource}")
            }
            Self::Serve { plugin, resource, wants } => {
                write!(f, "{plugin} serves {resource} and wants {wants:?}")
            }
            Self::Register(plugin) => write!(f, "{plugin} registers"),
            Self::RegisterAs { plugin, resource, version } => {
                write!(f, "{plugin} registers {resource:?} in version {version:?}")
            }
            Self::List(plugin, devices) => write!(f, "{plugin} lists {}", or_nothing(devices)),
            Self::Behave(plugin, manner) => write!(f, "{plugin} behaves: {manner:?}"),
            Self::EndStreams(plugin) => write!(f, "{plugin} ends its streams"),
            Self::Die(plugin) => write!(f, "{plugin} dies"),
            Self::Streams(plugin, count) => write!(f, "{plugin} has {count} streams"),
            Self::Healthy(resource, ids) => {
                write!(f, "{resource} has {}", or_nothing(ids))
            }
            Self::Run(pod) => write!(f, "pod {} ({}) comes: {}", pod.name, pod.uid, wishes(pod)),
            Self::RestartContainer(pod, container) => {
                write!(f, "container {container} of {pod} is started again")
            }
            Self::Delete(pod) => write!(f, "pod {pod} is deleted"),
            Self::Reports { pod, container, health } => {
                write!(f, "status of {container} in {pod}: {}", or_nothing(health))
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

fn or_nothing(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}

fn wishes(pod: &Pod) -> String {
    let inits =
        pod.init_containers.iter().map(|init| (format!("{:?} ", init.role), &init.container));
    let apps = pod.containers.iter().map(|container| (String::new(), container));
    let wish = |(role, container): (String, &Container)| {
        let limits: Vec<_> = container
            .limits
            .iter()
            .map(|(resource, count)| format!("{count} {resource}"))
            .collect();
        let limits = if limits.is_empty() { "nothing".to_owned() } else { limits.join(" and ") };
        format!("{role}{} wants {limits}", container.name)
    };
    inits.chain(apps).map(wish).collect::<Vec<_>>().join(", ")
}

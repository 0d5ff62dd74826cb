//! All sequences of the comparison.

use windlass_kubelet_sim::{Container, Pod};

use super::script::{Manner, Script, Step, Wants};

const GPU: &str = "example.com/gpu";
const NIC: &str = "example.com/nic";

/// All scripts.
pub(crate) fn all() -> Vec<Script> {
    vec![
        registration(),
        lists(),
        pods(),
        init_containers(),
        preference(),
        pre_start(),
        refusals(),
        numa_nodes(),
        lost_streams(),
        zombie(),
        restarts(),
        reboots(),
        broken_checkpoint(),
    ]
}

fn serves(plugin: &'static str, resource: &'static str, wants: Wants) -> Step {
    Step::Serve { plugin, resource, wants }
}

/// Steps of a plugin that serves, lists its devices and registers, until the kubelet has the list.
fn registered(
    plugin: &'static str,
    resource: &'static str,
    wants: Wants,
    devices: &'static str,
) -> Vec<Step> {
    vec![
        serves(plugin, resource, wants),
        Step::List(plugin, devices),
        Step::Register(plugin),
        Step::Healthy(resource, devices),
    ]
}

/// A pod with one container, `c`.
fn asks(name: &str, resource: &str, count: u64) -> Step {
    Step::Run(Pod::new(name).container(container("c", resource, count)))
}

fn container(name: &str, resource: &str, count: u64) -> Container {
    Container::new(name).limit(resource, count)
}

/// Registrations that are refused, without devices, with failing options, and as another resource.
pub(crate) fn registration() -> Script {
    let as_other = |resource, version| Step::RegisterAs { plugin: "gpu", resource, version };
    let steps = vec![
        serves("gpu", GPU, Wants::Nothing),
        as_other(GPU, "v1beta2"),
        as_other(GPU, ""),
        as_other("gpu", "v1beta1"),
        as_other("kubernetes.io/gpu", "v1beta1"),
        as_other("Example.com/gpu", "v1beta1"),
        as_other("example.com/gpu/more", "v1beta1"),
        Step::Behave("gpu", Manner::OptionsFail),
        as_other(GPU, "v1beta1"),
        Step::Behave("gpu", Manner::Right),
        Step::Register("gpu"),
        Step::Count,
        Step::List("gpu", "d0 d1 d2!"),
        Step::Healthy(GPU, "d0 d1"),
        Step::Count,
    ];
    Script { name: "registration", steps }
}

/// Devices that come, go, fail and recover, some of them in a container.
pub(crate) fn lists() -> Script {
    let reports = |health| Step::Reports { pod: "holder", container: "c", health };
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1 d2");
    steps.extend([
        asks("holder", GPU, 1),
        reports("example.com/gpu d0 Healthy"),
        Step::List("gpu", "d0! d1 d2"),
        Step::Healthy(GPU, "d1 d2"),
        reports("example.com/gpu d0 Unhealthy"),
        asks("two", GPU, 2),
        Step::Delete("two"),
        Step::List("gpu", "d1 d3"),
        Step::Healthy(GPU, "d1 d3"),
        Step::Count,
        asks("three", GPU, 3),
        Step::Delete("three"),
        Step::List("gpu", "d0 d1 d3"),
        Step::Healthy(GPU, "d0 d1 d3"),
        reports("example.com/gpu d0 Healthy"),
        asks("both", GPU, 2),
        Step::List("gpu", ""),
        Step::Healthy(GPU, ""),
        Step::Count,
        asks("none", GPU, 1),
        asks("zero", GPU, 0),
        Step::List("gpu", "d1 d2? d1! d3"),
        Step::Healthy(GPU, "d1 d3"),
        Step::Count,
    ]);
    Script { name: "lists", steps }
}

/// Pods of several containers, pods that are too large, pods that end, and a second pod of the same name.
pub(crate) fn pods() -> Script {
    let mut again = Pod::new("a").container(container("c", GPU, 2));
    "another-uid".clone_into(&mut again.uid);
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1 d2 d3");
    steps.extend(registered("nic", NIC, Wants::Nothing, "n0"));
    steps.extend([
        asks("a", GPU, 1),
        Step::Run(
            Pod::new("b")
                .container(container("first", GPU, 1).limit(NIC, 1))
                .container(Container::new("plain"))
                .container(container("second", GPU, 1)),
        ),
        asks("large", GPU, 2),
        asks("larger", GPU, 5),
        asks("busy", NIC, 1),
        asks("unknown", "example.com/unknown", 1),
        Step::Get("b"),
        Step::Get("large"),
        Step::Get("nobody"),
        Step::RestartContainer("b", "second"),
        Step::Delete("a"),
        Step::Run(again),
        Step::Delete("b"),
        asks("rest", GPU, 2),
    ]);
    Script { name: "pods", steps }
}

/// Reuse of init containers' devices, and none of a sidecar's.
pub(crate) fn init_containers() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1 d2 d3 d4 d5");
    steps.extend([
        Step::Run(
            Pod::new("plain")
                .init(container("init", GPU, 2))
                .container(container("same", GPU, 2))
                .container(container("other", GPU, 1)),
        ),
        Step::Get("plain"),
        Step::Delete("plain"),
        Step::Run(
            Pod::new("sides")
                .init(container("init", GPU, 1))
                .sidecar(container("side", GPU, 2))
                .sidecar(container("second", GPU, 1))
                .container(container("one", GPU, 1))
                .container(container("other", GPU, 2)),
        ),
        Step::Get("sides"),
        Step::Delete("sides"),
        Step::Run(
            Pod::new("grows")
                .init(container("small", GPU, 1))
                .init(container("large", GPU, 3))
                .container(container("c", GPU, 3)),
        ),
    ]);
    Script { name: "init_containers", steps }
}

/// Plugins with and without `GetPreferredAllocation`, whose answer is a hint.
pub(crate) fn preference() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1 d2");
    steps.extend(registered("nic", NIC, Wants::Nothing, "n0 n1"));
    steps.extend([
        asks("asked", GPU, 1),
        asks("unasked", NIC, 2),
        Step::Behave("gpu", Manner::PreferenceFails),
        asks("failed", GPU, 1),
        Step::Behave("gpu", Manner::PrefersUnknown),
        asks("filled", GPU, 2),
    ]);
    Script { name: "preference", steps }
}

/// `PreStartContainer` precedes each start, and a failed call is tried again.
pub(crate) fn pre_start() -> Script {
    let mut steps = registered("gpu", GPU, Wants::PreStart, "d0");
    steps.extend([
        asks("a", GPU, 1),
        Step::RestartContainer("a", "c"),
        Step::Delete("a"),
        Step::Behave("gpu", Manner::PreStartFailsOnce),
        asks("b", GPU, 1),
        asks("nothing", GPU, 0),
    ]);
    Script { name: "pre_start", steps }
}

/// A plugin that refuses, or answers nothing.
pub(crate) fn refusals() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Nothing, "d0");
    steps.extend([
        Step::Behave("gpu", Manner::AllocateFails),
        asks("refused", GPU, 1),
        Step::Behave("gpu", Manner::Right),
        asks("next", GPU, 1),
        Step::Delete("next"),
        Step::Behave("gpu", Manner::AllocatesNothing),
        asks("empty", GPU, 1),
        Step::Behave("gpu", Manner::Right),
        asks("after", GPU, 1),
    ]);
    Script { name: "refusals", steps }
}

/// Devices of one NUMA node, of two, of an unknown one, of none, and with an empty topology.
pub(crate) fn numa_nodes() -> Script {
    let steps = vec![
        serves("gpu", GPU, Wants::Nothing),
        Step::List("gpu", "d0@0 d1@0,1 d2 d3@7"),
        Step::Register("gpu"),
        Step::Healthy(GPU, "d0@0 d1@0 d1@1 d2 d3@7"),
        serves("nic", NIC, Wants::Nothing),
        Step::List("nic", "n0@ n1"),
        Step::Register("nic"),
        Step::Healthy(NIC, "n1"),
        Step::Count,
        asks("all", GPU, 4),
        asks("empty", NIC, 2),
        Step::List("gpu", "d0@1 d1 d2 d3"),
        Step::Healthy(GPU, "d0@1 d1 d2 d3"),
        Step::Get("all"),
    ];
    Script { name: "numa_nodes", steps }
}

/// Streams that end: the only one, and the older of two.
pub(crate) fn lost_streams() -> Script {
    let mut steps = registered("old", GPU, Wants::Nothing, "d0 d1");
    steps.extend([
        asks("holder", GPU, 2),
        Step::EndStreams("old"),
        Step::Healthy(GPU, ""),
        Step::Count,
        asks("lost", GPU, 1),
        Step::Delete("lost"),
        Step::Delete("holder"),
    ]);
    steps.extend(registered("old", GPU, Wants::Nothing, "d0 d1"));
    steps.extend(registered("new", GPU, Wants::Preference, "d1 d2 d3"));
    steps.extend([
        Step::Streams("old", 1),
        asks("of-new", GPU, 1),
        Step::List("old", "d0 d1 d2"),
        Step::Healthy(GPU, "d0 d1 d2"),
        Step::EndStreams("old"),
        Step::Healthy(GPU, ""),
        Step::Count,
        Step::Streams("new", 0),
        Step::Register("new"),
        Step::Healthy(GPU, "d1 d2 d3"),
        asks("rest", GPU, 2),
        Step::Die("new"),
        Step::Healthy(GPU, ""),
        Step::Count,
        asks("after", GPU, 1),
    ]);
    Script { name: "lost_streams", steps }
}

/// A plugin whose second registration fails: its death goes unnoticed.
pub(crate) fn zombie() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Nothing, "d0");
    steps.extend([
        Step::Behave("gpu", Manner::OptionsFail),
        Step::RegisterAs { plugin: "gpu", resource: GPU, version: "v1beta1" },
        Step::Die("gpu"),
        asks("refused", GPU, 1),
        Step::Count,
        asks("again", GPU, 1),
    ]);
    Script { name: "zombie", steps }
}

/// The kubelet restarts: with running pods, with a pod deleted meanwhile, before its plugin and after.
pub(crate) fn restarts() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1 d2@0");
    steps.extend([
        asks("stays", GPU, 1),
        asks("goes", GPU, 1),
        asks("deleted", GPU, 1),
        Step::StopKubelet,
        Step::Delete("deleted"),
        Step::StartKubelet,
        Step::Streams("gpu", 0),
        Step::Count,
        asks("early", GPU, 1),
        Step::Delete("early"),
        Step::Get("stays"),
    ]);
    steps.extend(registered("gpu", GPU, Wants::Preference, "d0 d1 d2@0"));
    steps.extend([
        Step::Delete("goes"),
        asks("next", GPU, 2),
        Step::RestartContainer("stays", "c"),
        asks("full", GPU, 1),
    ]);
    Script { name: "restarts", steps }
}

/// After a reboot, pods come before their plugin.
pub(crate) fn reboots() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1");
    steps.extend([
        asks("a", GPU, 1),
        Step::Run(Pod::new("without").container(Container::new("c"))),
        Step::StopKubelet,
        Step::EndContainers,
        Step::StartKubelet,
    ]);
    steps.extend(registered("gpu", GPU, Wants::Preference, "d0 d1"));
    steps.extend([Step::Delete("a"), asks("next", GPU, 2)]);
    Script { name: "reboots", steps }
}

/// A corrupt checkpoint is ignored, and a device has two owners.
pub(crate) fn broken_checkpoint() -> Script {
    let mut steps = registered("gpu", GPU, Wants::Preference, "d0 d1");
    steps.extend([
        asks("first", GPU, 1),
        Step::StopKubelet,
        Step::BreakCheckpoint,
        Step::StartKubelet,
    ]);
    steps.extend(registered("gpu", GPU, Wants::Preference, "d0 d1"));
    steps.push(asks("second", GPU, 1));
    Script { name: "broken_checkpoint", steps }
}

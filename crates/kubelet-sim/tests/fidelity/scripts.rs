//! The scripts of the comparison.

use windlass_kubelet_sim::{Container, Pod};

use super::script::{Behaviour, OptionalCall, Script, Step};

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
        failed_allocate_calls(),
        numa_nodes(),
        lost_streams(),
        lost_plugin_after_failed_registration(),
        restarts(),
        reboots(),
        broken_checkpoint(),
    ]
}

fn serve(plugin: &'static str, resource: &'static str, requested_call: OptionalCall) -> Step {
    Step::Serve { plugin, resource, requested_call }
}

/// Steps in which a plugin binds its socket, lists devices and registers, until the kubelet has the list.
fn register(
    plugin: &'static str,
    resource: &'static str,
    requested_call: OptionalCall,
    devices: &'static str,
) -> Vec<Step> {
    vec![
        serve(plugin, resource, requested_call),
        Step::List(plugin, devices),
        Step::Register(plugin),
        Step::WaitForHealthy(resource, devices),
    ]
}

/// Runs a pod with one container, `c`.
fn run_pod(name: &str, resource: &str, count: u64) -> Step {
    Step::Run(Pod::new(name).container(container("c", resource, count)))
}

fn container(name: &str, resource: &str, count: u64) -> Container {
    Container::new(name).limit(resource, count)
}

/// Registrations with invalid versions and names, with a failed `GetDevicePluginOptions`, and without
/// devices.
pub(crate) fn registration() -> Script {
    let as_other = |resource, version| Step::RegisterAs { plugin: "gpu", resource, version };
    let steps = vec![
        serve("gpu", GPU, OptionalCall::None),
        as_other(GPU, "v1beta2"),
        as_other(GPU, ""),
        as_other("gpu", "v1beta1"),
        as_other("kubernetes.io/gpu", "v1beta1"),
        as_other("Example.com/gpu", "v1beta1"),
        as_other("example.com/gpu/more", "v1beta1"),
        Step::SetBehaviour("gpu", Behaviour::OptionsFail),
        as_other(GPU, "v1beta1"),
        Step::SetBehaviour("gpu", Behaviour::Right),
        Step::Register("gpu"),
        Step::Count,
        Step::List("gpu", "d0 d1 d2!"),
        Step::WaitForHealthy(GPU, "d0 d1"),
        Step::Count,
    ];
    Script { name: "registration", steps }
}

/// Devices that are added, removed, fail and recover; some of them are allocated.
pub(crate) fn lists() -> Script {
    let has_health = |health| Step::WaitForHealth { pod: "holder", container: "c", health };
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2");
    steps.extend([
        run_pod("holder", GPU, 1),
        has_health("example.com/gpu d0 Healthy"),
        Step::List("gpu", "d0! d1 d2"),
        Step::WaitForHealthy(GPU, "d1 d2"),
        has_health("example.com/gpu d0 Unhealthy"),
        run_pod("two", GPU, 2),
        Step::Delete("two"),
        Step::List("gpu", "d1 d3"),
        Step::WaitForHealthy(GPU, "d1 d3"),
        Step::Count,
        run_pod("three", GPU, 3),
        Step::Delete("three"),
        Step::List("gpu", "d0 d1 d3"),
        Step::WaitForHealthy(GPU, "d0 d1 d3"),
        has_health("example.com/gpu d0 Healthy"),
        run_pod("both", GPU, 2),
        Step::List("gpu", ""),
        Step::WaitForHealthy(GPU, ""),
        Step::Count,
        run_pod("none", GPU, 1),
        run_pod("zero", GPU, 0),
        Step::List("gpu", "d1 d2? d1! d3"),
        Step::WaitForHealthy(GPU, "d1 d3"),
        Step::Count,
    ]);
    Script { name: "lists", steps }
}

/// Pods with several containers, pods that request too much, pods that end, and two pods with one name.
pub(crate) fn pods() -> Script {
    let mut same_name_pod = Pod::new("a").container(container("c", GPU, 2));
    "another-uid".clone_into(&mut same_name_pod.uid);
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2 d3");
    steps.extend(register("nic", NIC, OptionalCall::None, "n0"));
    steps.extend([
        run_pod("a", GPU, 1),
        Step::Run(
            Pod::new("b")
                .container(container("first", GPU, 1).limit(NIC, 1))
                .container(Container::new("plain"))
                .container(container("second", GPU, 1)),
        ),
        run_pod("large", GPU, 2),
        run_pod("larger", GPU, 5),
        run_pod("busy", NIC, 1),
        run_pod("unknown", "example.com/unknown", 1),
        Step::Get("b"),
        Step::Get("large"),
        Step::Get("nobody"),
        Step::RestartContainer("b", "second"),
        Step::Delete("a"),
        Step::Run(same_name_pod),
        Step::Delete("b"),
        run_pod("rest", GPU, 2),
    ]);
    Script { name: "pods", steps }
}

/// Later containers reuse the devices of init containers, but not those of sidecars.
pub(crate) fn init_containers() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2 d3 d4 d5");
    steps.extend([
        Step::Run(
            Pod::new("plain")
                .init_container(container("init", GPU, 2))
                .container(container("same", GPU, 2))
                .container(container("other", GPU, 1)),
        ),
        Step::Get("plain"),
        Step::Delete("plain"),
        Step::Run(
            Pod::new("sides")
                .init_container(container("init", GPU, 1))
                .sidecar(container("side", GPU, 2))
                .sidecar(container("second", GPU, 1))
                .container(container("one", GPU, 1))
                .container(container("other", GPU, 2)),
        ),
        Step::Get("sides"),
        Step::Delete("sides"),
        Step::Run(
            Pod::new("grows")
                .init_container(container("small", GPU, 1))
                .init_container(container("large", GPU, 3))
                .container(container("c", GPU, 3)),
        ),
    ]);
    Script { name: "init_containers", steps }
}

/// Plugins with and without `GetPreferredAllocation`, with correct, failed and invalid answers.
pub(crate) fn preference() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2");
    steps.extend(register("nic", NIC, OptionalCall::None, "n0 n1"));
    steps.extend([
        run_pod("asked", GPU, 1),
        run_pod("unasked", NIC, 2),
        Step::SetBehaviour("gpu", Behaviour::PreferenceFails),
        run_pod("failed", GPU, 1),
        Step::SetBehaviour("gpu", Behaviour::PrefersUnknown),
        run_pod("filled", GPU, 2),
    ]);
    Script { name: "preference", steps }
}

/// `PreStartContainer` precedes each container start. The kubelet retries after a failed call.
pub(crate) fn pre_start() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::PreStart, "d0");
    steps.extend([
        run_pod("a", GPU, 1),
        Step::RestartContainer("a", "c"),
        Step::Delete("a"),
        Step::SetBehaviour("gpu", Behaviour::PreStartFailsOnce),
        run_pod("b", GPU, 1),
        run_pod("nothing", GPU, 0),
    ]);
    Script { name: "pre_start", steps }
}

/// A plugin that fails `Allocate`, or answers without a container response.
pub(crate) fn failed_allocate_calls() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::None, "d0");
    steps.extend([
        Step::SetBehaviour("gpu", Behaviour::AllocateFails),
        run_pod("refused", GPU, 1),
        Step::SetBehaviour("gpu", Behaviour::Right),
        run_pod("next", GPU, 1),
        Step::Delete("next"),
        Step::SetBehaviour("gpu", Behaviour::AllocatesNothing),
        run_pod("empty", GPU, 1),
        Step::SetBehaviour("gpu", Behaviour::Right),
        run_pod("after", GPU, 1),
    ]);
    Script { name: "refusals", steps }
}

/// Devices with one NUMA node, with two, with an unknown one, without topology, and with an empty one.
pub(crate) fn numa_nodes() -> Script {
    let steps = vec![
        serve("gpu", GPU, OptionalCall::None),
        Step::List("gpu", "d0@0 d1@0,1 d2 d3@7"),
        Step::Register("gpu"),
        Step::WaitForHealthy(GPU, "d0@0 d1@0 d1@1 d2 d3@7"),
        serve("nic", NIC, OptionalCall::None),
        Step::List("nic", "n0@ n1"),
        Step::Register("nic"),
        Step::WaitForHealthy(NIC, "n1"),
        Step::Count,
        run_pod("all", GPU, 4),
        run_pod("empty", NIC, 2),
        Step::List("gpu", "d0@1 d1 d2 d3"),
        Step::WaitForHealthy(GPU, "d0@1 d1 d2 d3"),
        Step::Get("all"),
    ];
    Script { name: "numa_nodes", steps }
}

/// The end of the only stream of a resource, and of the older of two streams.
pub(crate) fn lost_streams() -> Script {
    let mut steps = register("old", GPU, OptionalCall::None, "d0 d1");
    steps.extend([
        run_pod("holder", GPU, 2),
        Step::EndStreams("old"),
        Step::WaitForHealthy(GPU, ""),
        Step::Count,
        run_pod("lost", GPU, 1),
        Step::Delete("lost"),
        Step::Delete("holder"),
    ]);
    steps.extend(register("old", GPU, OptionalCall::None, "d0 d1"));
    steps.extend(register("new", GPU, OptionalCall::Preference, "d1 d2 d3"));
    steps.extend([
        Step::WaitForStreams("old", 1),
        run_pod("of-new", GPU, 1),
        Step::List("old", "d0 d1 d2"),
        Step::WaitForHealthy(GPU, "d0 d1 d2"),
        Step::EndStreams("old"),
        Step::WaitForHealthy(GPU, ""),
        Step::Count,
        Step::WaitForStreams("new", 0),
        Step::Register("new"),
        Step::WaitForHealthy(GPU, "d1 d2 d3"),
        run_pod("rest", GPU, 2),
        Step::Kill("new"),
        Step::WaitForHealthy(GPU, ""),
        Step::Count,
        run_pod("after", GPU, 1),
    ]);
    Script { name: "lost_streams", steps }
}

/// A plugin whose second registration fails. Its later end has no effect on the node's counts.
pub(crate) fn lost_plugin_after_failed_registration() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::None, "d0");
    steps.extend([
        Step::SetBehaviour("gpu", Behaviour::OptionsFail),
        Step::RegisterAs { plugin: "gpu", resource: GPU, version: "v1beta1" },
        Step::Kill("gpu"),
        run_pod("refused", GPU, 1),
        Step::Count,
        run_pod("again", GPU, 1),
    ]);
    Script { name: "zombie", steps }
}

/// A kubelet restart with running pods, and with a pod that is deleted while the kubelet is stopped.
/// Further pods come before and after the plugin registers again.
pub(crate) fn restarts() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2@0");
    steps.extend([
        run_pod("stays", GPU, 1),
        run_pod("goes", GPU, 1),
        run_pod("deleted", GPU, 1),
        Step::StopKubelet,
        Step::Delete("deleted"),
        Step::StartKubelet,
        Step::WaitForStreams("gpu", 0),
        Step::Count,
        run_pod("early", GPU, 1),
        Step::Delete("early"),
        Step::Get("stays"),
    ]);
    steps.extend(register("gpu", GPU, OptionalCall::Preference, "d0 d1 d2@0"));
    steps.extend([
        Step::Delete("goes"),
        run_pod("next", GPU, 2),
        Step::RestartContainer("stays", "c"),
        run_pod("full", GPU, 1),
    ]);
    Script { name: "restarts", steps }
}

/// A reboot, after which the kubelet admits the pods before their plugin registers.
pub(crate) fn reboots() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1");
    steps.extend([
        run_pod("a", GPU, 1),
        Step::Run(Pod::new("without").container(Container::new("c"))),
        Step::StopKubelet,
        Step::EndContainers,
        Step::StartKubelet,
    ]);
    steps.extend(register("gpu", GPU, OptionalCall::Preference, "d0 d1"));
    steps.extend([Step::Delete("a"), run_pod("next", GPU, 2)]);
    Script { name: "reboots", steps }
}

/// A corrupt checkpoint, which the kubelet ignores. Afterwards two pods hold the same device.
pub(crate) fn broken_checkpoint() -> Script {
    let mut steps = register("gpu", GPU, OptionalCall::Preference, "d0 d1");
    steps.extend([
        run_pod("first", GPU, 1),
        Step::StopKubelet,
        Step::BreakCheckpoint,
        Step::StartKubelet,
    ]);
    steps.extend(register("gpu", GPU, OptionalCall::Preference, "d0 d1"));
    steps.push(run_pod("second", GPU, 1));
    Script { name: "broken_checkpoint", steps }
}

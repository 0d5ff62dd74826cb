//! Amount of a resource that a pod requests, computed as kube-scheduler does.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::selector::Amount;

type Quantities = BTreeMap<String, Quantity>;

/// Number of nano-units in a unit.
pub(crate) const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// Number of nano-units in a thousandth.
pub(super) const NANOS_PER_MILLI: i128 = 1_000_000;
/// Number of nano-units of a byte in a MiB.
pub(super) const NANOS_PER_MIB: i128 = NANOS_PER_UNIT * 1024 * 1024;

/// Largest amount of a resource that the pod holds at any time, in nano-units of a unit.
///
/// Init containers run one after another, before the other containers. A sidecar (an init container with
/// `restartPolicy: Always`) runs until the pod ends (KEP-753). A pod-level request replaces its containers' requests
/// (KEP-2837).
pub(crate) fn of_pod(spec: &PodSpec, resource: &str) -> i128 {
    let overhead = spec.overhead.as_ref().map_or(0, |quantities| amount(quantities, resource));
    let pod_level = spec.resources.as_ref().and_then(|it| it.requests.as_ref());
    if let Some(quantities) = pod_level.filter(|it| it.contains_key(resource)) {
        return amount(quantities, resource) + overhead;
    }
    let (mut sidecars, mut largest) = (0, 0);
    for init in spec.init_containers.iter().flatten() {
        let request = of_container(init, resource);
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars += request;
            largest = largest.max(sidecars);
        } else {
            largest = largest.max(sidecars + request);
        }
    }
    let running: i128 = spec.containers.iter().map(|it| of_container(it, resource)).sum();
    largest.max(sidecars + running) + overhead
}

fn of_container(container: &Container, resource: &str) -> i128 {
    quantity(container, resource).map_or(0, nano_units)
}

/// The request of a container, or else its limit: the API server's defaulting copies limits to missing requests.
pub(super) fn quantity<'a>(container: &'a Container, resource: &str) -> Option<&'a Quantity> {
    let resources = container.resources.as_ref()?;
    resources
        .requests
        .iter()
        .chain(&resources.limits)
        .find_map(|quantities| quantities.get(resource))
}

/// Converts nano-units to multiples of `unit`, rounded up.
pub(super) fn round_up(nano_units: i128, unit: i128) -> i128 {
    (nano_units + unit - 1) / unit
}

fn amount(quantities: &Quantities, resource: &str) -> i128 {
    quantities.get(resource).map_or(0, nano_units)
}

fn nano_units(quantity: &Quantity) -> i128 {
    Amount::parse(&quantity.0).map_or(0, |amount| amount.nano_units().max(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: serde_json::Value, expected_milli: i128) {
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod's specification");
        assert_eq!(of_pod(&spec, "cpu") / 1_000_000, expected_milli);
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn a_pod_holds_the_sum_of_its_containers() {
        check(json!({"containers": [container("500m"), container("2")]}), 2500);
        check(json!({"containers": [{"name": "c"}]}), 0);
        check(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}), 3000);
        check(json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}), 1250);
    }

    #[test]
    fn the_largest_init_container_counts_and_sidecars_add_to_later_containers() {
        let sidecar = json!({
            "name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}},
        });
        let containers = json!([container("2")]);
        let init = json!([container("8"), container("4")]);
        check(json!({"initContainers": init, "containers": containers}), 8000);
        let init = json!([sidecar, container("4")]);
        check(json!({"initContainers": init, "containers": containers}), 5000);
        check(json!({"initContainers": [sidecar], "containers": containers}), 3000);
    }

    #[test]
    fn a_pod_level_request_replaces_those_of_the_containers() {
        let resources = json!({"requests": {"cpu": "3"}});
        check(json!({"resources": resources, "containers": [container("1")]}), 3000);
    }
}

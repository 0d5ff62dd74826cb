//! Pods as the kubelet's managers need them: containers, their extended resource limits, and claims.

use std::collections::BTreeMap;

use crate::dra::PodClaim;

/// Quantities by extended resource name. For extended resources, requests equal limits.
pub type Limits = BTreeMap<String, u64>;

/// A pod bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// UID. Device allocations are keyed by this UID.
    pub uid: String,
    /// Init containers, in their order of start, before the app containers.
    pub init_containers: Vec<InitContainer>,
    /// App containers.
    pub containers: Vec<Container>,
    /// Resource claims, and the containers that use them.
    pub claims: Vec<PodClaim>,
}

/// A container and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Name of the container in its pod.
    pub name: String,
    /// Limits of extended resources.
    pub limits: Limits,
}

/// An init container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitContainer {
    /// Name and limits.
    pub container: Container,
    /// Kind of the init container: run to completion, or sidecar.
    pub role: InitRole,
}

/// Kind of an init container. Decides whether later containers reuse its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitRole {
    /// Runs to completion. Later containers of the pod reuse its devices.
    RunsToCompletion,
    /// Restartable (`restartPolicy: Always`). Holds its devices until the pod ends.
    Sidecar,
}

// === impl Pod ===

impl Pod {
    /// A pod in namespace `default` whose UID is its name followed by `-uid`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            uid: format!("{name}-uid"),
            name,
            namespace: "default".to_owned(),
            init_containers: Vec::new(),
            containers: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Adds a claim.
    #[must_use]
    pub fn claim(mut self, claim: PodClaim) -> Self {
        self.claims.push(claim);
        self
    }

    /// Adds an app container.
    #[must_use]
    pub fn container(mut self, container: Container) -> Self {
        self.containers.push(container);
        self
    }

    /// Adds an init container that runs to completion.
    #[must_use]
    pub fn init_container(mut self, container: Container) -> Self {
        self.init_containers.push(InitContainer { container, role: InitRole::RunsToCompletion });
        self
    }

    /// Adds a restartable init container.
    #[must_use]
    pub fn sidecar(mut self, container: Container) -> Self {
        self.init_containers.push(InitContainer { container, role: InitRole::Sidecar });
        self
    }

    /// All containers in the order of admission: init containers first.
    pub(crate) fn in_admission_order(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().map(|init| &init.container).chain(&self.containers)
    }

    /// Containers that run until the pod ends: sidecars, then app containers.
    pub(crate) fn long_lived(&self) -> impl Iterator<Item = &Container> {
        self.init_containers
            .iter()
            .filter(|init| init.role == InitRole::Sidecar)
            .map(|init| &init.container)
            .chain(&self.containers)
    }

    /// Finds a container or init container by name.
    pub(crate) fn find(&self, name: &str) -> Option<&Container> {
        self.in_admission_order().find(|container| container.name == name)
    }

    /// Role of an init container; `None` for an app container.
    pub(crate) fn init_role(&self, name: &str) -> Option<InitRole> {
        self.init_containers.iter().find(|init| init.container.name == name).map(|init| init.role)
    }

    /// Limits of the pod by resource, as the scheduler counts them. Each is the maximum of the sum over
    /// all long-lived containers, and of each init container plus the sidecars started before it.
    pub fn effective_limits(&self) -> Limits {
        let mut long_lived = Limits::new();
        let mut peak = Limits::new();
        for init in &self.init_containers {
            match init.role {
                InitRole::Sidecar => {
                    add_limits(&mut long_lived, &init.container.limits);
                    raise_limits(&mut peak, &long_lived);
                }
                InitRole::RunsToCompletion => {
                    let mut init_sum = long_lived.clone();
                    add_limits(&mut init_sum, &init.container.limits);
                    raise_limits(&mut peak, &init_sum);
                }
            }
        }
        for container in &self.containers {
            add_limits(&mut long_lived, &container.limits);
        }
        raise_limits(&mut peak, &long_lived);
        peak
    }
}

// === impl Container ===

impl Container {
    /// A container without limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), limits: Limits::new() }
    }

    /// Adds a limit of `quantity` for `resource`.
    #[must_use]
    pub fn limit(mut self, resource: impl Into<String>, quantity: u64) -> Self {
        self.limits.insert(resource.into(), quantity);
        self
    }
}

/// Adds quantities to a sum.
fn add_limits(total: &mut Limits, quantities: &Limits) {
    for (resource, quantity) in quantities {
        let sum = total.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*quantity);
    }
}

/// Raises each quantity of `peak` to that of `candidate`, if the latter is larger.
fn raise_limits(peak: &mut Limits, candidate: &Limits) {
    for (resource, quantity) in candidate {
        let highest = peak.entry(resource.clone()).or_default();
        *highest = (*highest).max(*quantity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_needs_the_larger_of_its_init_phase_and_its_running_phase() {
        let container_of = |quantity| Container::new("c").limit("r", quantity);
        for (pod, expected) in [
            (Pod::new("p").container(container_of(1)).container(container_of(2)), 3),
            (Pod::new("p").init_container(container_of(5)).container(container_of(2)), 5),
            (
                Pod::new("p")
                    .sidecar(container_of(1))
                    .init_container(container_of(2))
                    .container(container_of(1)),
                3,
            ),
            (
                Pod::new("p")
                    .init_container(container_of(3))
                    .sidecar(container_of(1))
                    .sidecar(container_of(2))
                    .container(container_of(3)),
                6,
            ),
        ] {
            assert_eq!(pod.effective_limits()["r"], expected, "{pod:?}");
        }
    }

    #[test]
    fn a_sum_beyond_u64_saturates() {
        let container_of_max = |name| Container::new(name).limit("r", u64::MAX);
        let pod = Pod::new("p")
            .sidecar(container_of_max("s"))
            .container(container_of_max("a"))
            .container(container_of_max("b"));
        assert_eq!(pod.effective_limits()["r"], u64::MAX);
    }
}

//! Attributes and health of a GPU in the NVLink fabric.

use windlass_core::attribute::{AttributeName, AttributeValue};
use windlass_nvml::{Fabric, FabricHealth, FabricState};

use super::describe::attribute_name;

const STATE: AttributeName = attribute_name("fabricState");
const CLUSTER: AttributeName = attribute_name("fabricClusterUUID");
const CLIQUE: AttributeName = attribute_name("fabricCliqueID");
const DEGRADED: AttributeName = attribute_name("fabricDegraded");

/// Attributes of a fabric GPU. Cluster and clique exist only in a joined multi-node fabric.
pub(super) fn attributes(fabric: &Fabric) -> impl Iterator<Item = (AttributeName, AttributeValue)> {
    let cluster = fabric.cluster.as_deref().filter(|_| fabric.is_joined());
    let clique = cluster.map(|_| AttributeValue::Int(fabric.clique.into()));
    let is_degraded = fabric.health != FabricHealth::Good;
    [
        (STATE, Some(AttributeValue::string(state(fabric)))),
        (CLUSTER, cluster.map(AttributeValue::string)),
        (CLIQUE, clique),
        (DEGRADED, Some(AttributeValue::Bool(is_degraded))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// State as `nvidia-smi` names it, and `Failed` for a failed registration.
fn state(fabric: &Fabric) -> &'static str {
    match (fabric.state, &fabric.outcome) {
        (FabricState::NotStarted, _) => "NotStarted",
        (FabricState::InProgress, _) => "InProgress",
        (FabricState::Completed, Ok(())) => "Completed",
        (FabricState::Completed, Err(_)) => "Failed",
    }
}

/// Failure of the fabric, which makes peers unreachable. An unfinished registration is no failure, because the only
/// GPU of a virtual machine with passthrough never registers.
pub(super) fn failure(fabric: &Fabric) -> Option<String> {
    match (fabric.state, &fabric.outcome, fabric.health) {
        (FabricState::Completed, Err(error), _) => Some(error.to_string()),
        (FabricState::Completed, Ok(()), FabricHealth::Bad) => {
            Some("routes to its peers are broken".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINED: Fabric = Fabric {
        state: FabricState::Completed,
        outcome: Ok(()),
        cluster: None,
        clique: 7,
        health: FabricHealth::Good,
    };

    fn names(fabric: &Fabric) -> Vec<String> {
        attributes(fabric).map(|(name, _)| name.name().to_owned()).collect()
    }

    #[test]
    fn the_clique_is_an_attribute_only_in_a_joined_multi_node_fabric() {
        assert_eq!(names(&JOINED), ["fabricState", "fabricDegraded"]);
        let rack = Fabric { cluster: Some("8a3cc1f2".to_owned()), ..JOINED };
        let expected = ["fabricState", "fabricClusterUUID", "fabricCliqueID", "fabricDegraded"];
        assert_eq!(names(&rack), expected);
        let in_progress = Fabric { state: FabricState::InProgress, ..rack };
        assert_eq!(names(&in_progress), ["fabricState", "fabricDegraded"]);
    }

    #[test]
    fn an_unfinished_registration_is_no_failure_and_broken_routes_are() {
        let in_progress = Fabric { state: FabricState::InProgress, ..JOINED };
        assert_eq!((failure(&JOINED), failure(&in_progress)), (None, None));
        assert!(failure(&Fabric { health: FabricHealth::Bad, ..JOINED }).is_some());
    }
}

//! What configurations of network plugins have in common: how they name interfaces.

use windlass_config::{
    NicPolicy, PerContainer, Pooled, RdmaNode, Replicas, Selector, Shared, Sharing, SharingMethod,
    document::{Lined, Remarks},
};
use windlass_core::{device::DeviceKind, selector::DeviceExpression};

use super::{expression::All, present};

/// The link types of interfaces that have RDMA or virtual functions.
const LINK_TYPES: [&str; 2] = ["ether", "infiniband"];

/// Interfaces of an expression.
pub(super) fn all(expression: Option<DeviceExpression>) -> Selector {
    Selector { expression, ..Selector::all(DeviceKind::Nic) }
}

/// So many users of one device, or as many as can be.
pub(super) fn users(count: &Lined<i64>, remarks: &mut Remarks) -> Sharing {
    let replicas = replicas(count, remarks);
    let (method, per_container) = (SharingMethod::Shared, PerContainer::Any);
    Sharing::Shared(Shared { method, replicas, per_container })
}

/// So many users of all devices together, or as many as can be.
pub(super) fn pool(count: &Lined<i64>, remarks: &mut Remarks) -> Sharing {
    let (tokens, per_container) = (replicas(count, remarks), PerContainer::Any);
    Sharing::Pooled(Pooled { tokens, per_container })
}

fn replicas(count: &Lined<i64>, remarks: &mut Remarks) -> Replicas {
    let most = u64::from(Replicas::MAX);
    let asked = u64::try_from(count.value).unwrap_or(1).max(1);
    if asked > most {
        remarks.warn(count.line, format!("{asked} are more than can be offered: there are {most}"));
    }
    Replicas::try_from(asked.min(most)).expect("from one to the most")
}

/// Interfaces with every node that they have, as network plugins give them.
pub(super) fn with_all_nodes() -> NicPolicy {
    let rdma_nodes = [RdmaNode::Uverbs, RdmaNode::RdmaCm, RdmaNode::Umad, RdmaNode::Issm].into();
    NicPolicy { rdma_nodes, ..NicPolicy::default() }
}

/// What to say where containers get nodes that manage.
pub(super) const MANAGEMENT: &str = "containers get umad and issm, as from that plugin: whoever has them \
    can speak to switches and manage the subnet. Leave them out of nics.rdmaNodes unless a pod needs them";

/// PCI ids as the kernel has them: four digits, small letters.
pub(super) fn hexadecimal(list: Option<Lined<Vec<String>>>, remarks: &mut Remarks) -> Vec<String> {
    let line = list.as_ref().map_or(1, |list| list.line);
    let mut id = |given: String| {
        let lower = given.to_ascii_lowercase();
        let digits = lower.strip_prefix("0x").unwrap_or(&lower);
        if digits.len() > 4 || digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_hexdigit())
        {
            remarks.wrong(line, format!("{given:?} is no PCI id: write four hexadecimal digits"));
            return given;
        }
        let id = format!("{digits:0>4}");
        if id != given {
            let text = format!("{given:?} fits nothing in that plugin; here it means {id}");
            remarks.warn(line, text);
        }
        id
    };
    present(list).into_iter().map(&mut id).collect()
}

/// What the kernel calls the way in which an interface frames its packets.
pub(super) fn link_types(list: Option<Lined<Vec<String>>>, all: &mut All, remarks: &mut Remarks) {
    let line = list.as_ref().map_or(1, |list| list.line);
    let types = present(list);
    for unknown in types.iter().filter(|kind| !LINK_TYPES.contains(&kind.as_str())) {
        remarks.warn(line, format!("link type {unknown:?} is none of {}", LINK_TYPES.join(", ")));
    }
    all.one_of("dra.net/encapsulation", &types);
}

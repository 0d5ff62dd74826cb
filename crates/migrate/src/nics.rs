//! Names of interfaces in the configurations of network plugins.

use windlass_config::{
    NicPolicy, PerContainer, Pooled, RdmaNode, Replicas, Selector, Shared, Sharing, SharingMethod,
    document::{Diagnostics, Spanned},
};
use windlass_core::{device::DeviceKind, selector::DeviceExpression};

use super::{expression::All, present};

/// The link types of interfaces that have RDMA or virtual functions.
const LINK_TYPES: [&str; 2] = ["ether", "infiniband"];

pub(super) fn all(expression: Option<DeviceExpression>) -> Selector {
    Selector { expression, ..Selector::all(DeviceKind::Nic) }
}

/// Users of one device, up to the limit.
pub(super) fn users(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Sharing {
    Sharing::Shared(Shared {
        method: SharingMethod::Shared,
        replicas: replicas(count, diagnostics),
        per_container: PerContainer::Any,
        memory_mib: None,
    })
}

/// Users of all devices together, up to the limit.
pub(super) fn pool(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Sharing {
    let tokens = replicas(count, diagnostics);
    Sharing::Pooled(Pooled { tokens, per_container: PerContainer::Any })
}

fn replicas(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Replicas {
    let most = u64::from(Replicas::MAX);
    let asked = u64::try_from(count.value).unwrap_or(1).max(1);
    if asked > most {
        diagnostics
            .warn(count.line, format!("{asked} are more than can be offered: there are {most}"));
    }
    Replicas::try_from(asked.min(most)).expect("from one to the most")
}

/// Interfaces with every node that they have, as network plugins give them.
pub(super) fn with_all_nodes() -> NicPolicy {
    let rdma_nodes = [RdmaNode::Uverbs, RdmaNode::RdmaCm, RdmaNode::Umad, RdmaNode::Issm].into();
    NicPolicy { rdma_nodes, ..NicPolicy::default() }
}

/// The warning about nodes that can manage the network.
pub(super) const MANAGEMENT: &str = "containers get umad and issm, as from that plugin: whoever has them \
    can speak to switches and manage the subnet. Leave them out of nics.rdmaNodes unless a pod needs them";

/// PCI ids as the kernel has them: four digits, small letters.
pub(super) fn hexadecimal(
    list: Option<Spanned<Vec<String>>>,
    diagnostics: &mut Diagnostics,
) -> Vec<String> {
    let line = list.as_ref().map_or(1, |list| list.line);
    let mut id = |given: String| {
        let lower = given.to_ascii_lowercase();
        let digits = lower.strip_prefix("0x").unwrap_or(&lower);
        if digits.len() > 4 || digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_hexdigit())
        {
            diagnostics
                .wrong(line, format!("{given:?} is not a PCI id: write four hexadecimal digits"));
            return given;
        }
        let id = format!("{digits:0>4}");
        if id != given {
            let text = format!("{given:?} fits nothing in that plugin; here it means {id}");
            diagnostics.warn(line, text);
        }
        id
    };
    present(list).into_iter().map(&mut id).collect()
}

/// The kernel's name of an interface's encapsulation.
pub(super) fn link_types(
    list: Option<Spanned<Vec<String>>>,
    all: &mut All,
    diagnostics: &mut Diagnostics,
) {
    let line = list.as_ref().map_or(1, |list| list.line);
    let types = present(list);
    for unknown in types.iter().filter(|kind| !LINK_TYPES.contains(&kind.as_str())) {
        diagnostics
            .warn(line, format!("link type {unknown:?} is none of {}", LINK_TYPES.join(", ")));
    }
    all.one_of("dra.net/encapsulation", &types);
}

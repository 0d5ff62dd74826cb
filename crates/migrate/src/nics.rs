//! Network interfaces in the configurations of network plugins: sharing, PCI ids, link types.

use windlass_config::{
    NicPolicy, PerContainer, Pooled, RdmaNode, Replicas, Selector, Shared, Sharing, SharingMethod,
    document::{Diagnostics, Spanned},
};
use windlass_core::{device::DeviceKind, selector::DeviceExpression};

use super::{expression::Conditions, items};

/// Link types of interfaces with RDMA or virtual functions.
const LINK_TYPES: [&str; 2] = ["ether", "infiniband"];

pub(super) fn nic_selector(expression: Option<DeviceExpression>) -> Selector {
    Selector { expression, ..Selector::all(DeviceKind::Nic) }
}

/// Sharing of a device by this many users, up to Windlass's limit.
pub(super) fn device_sharing(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Sharing {
    Sharing::Shared(Shared {
        method: SharingMethod::Shared,
        replicas: replicas(count, diagnostics),
        per_container: PerContainer::Any,
        memory_mib: None,
    })
}

/// Sharing of all devices together by this many users, up to Windlass's limit.
pub(super) fn pool_sharing(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Sharing {
    let tokens = replicas(count, diagnostics);
    Sharing::Pooled(Pooled { tokens, per_container: PerContainer::Any })
}

fn replicas(count: &Spanned<i64>, diagnostics: &mut Diagnostics) -> Replicas {
    let max = u64::from(Replicas::MAX);
    let requested = u64::try_from(count.value).unwrap_or(1).max(1);
    if requested > max {
        diagnostics.warn(count.line, format!("{requested} exceed the limit: {max} are offered"));
    }
    Replicas::try_from(requested.min(max)).expect("from 1 to the maximum")
}

/// Policy that gives containers every node of an interface, as network plugins do.
pub(super) fn with_all_nodes() -> NicPolicy {
    let rdma_nodes = [RdmaNode::Uverbs, RdmaNode::RdmaCm, RdmaNode::Umad, RdmaNode::Issm].into();
    NicPolicy { rdma_nodes, ..NicPolicy::default() }
}

/// Warning about nodes that can manage the network.
pub(super) const MANAGEMENT_WARNING: &str = "containers get umad and issm, as from that plugin: a container with them \
    can send to switches and manage the subnet. Leave them out of nics.rdmaNodes unless a pod needs them";

/// PCI ids in the kernel's form: four hexadecimal digits in lower case.
pub(super) fn hexadecimal(
    list: Option<Spanned<Vec<String>>>,
    diagnostics: &mut Diagnostics,
) -> Vec<String> {
    let line = list.as_ref().map_or(1, |list| list.line);
    let mut id = |original: String| {
        let lower = original.to_ascii_lowercase();
        let digits = lower.strip_prefix("0x").unwrap_or(&lower);
        if digits.len() > 4 || digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_hexdigit())
        {
            diagnostics.error(
                line,
                format!("{original:?} is not a PCI id: write four hexadecimal digits"),
            );
            return original;
        }
        let id = format!("{digits:0>4}");
        if id != original {
            let text = format!("{original:?} matches nothing in that plugin; here it means {id}");
            diagnostics.warn(line, text);
        }
        id
    };
    items(list).into_iter().map(&mut id).collect()
}

/// Requires one of the link types, by the kernel's names of encapsulations.
pub(super) fn link_types(
    list: Option<Spanned<Vec<String>>>,
    conditions: &mut Conditions,
    diagnostics: &mut Diagnostics,
) {
    let line = list.as_ref().map_or(1, |list| list.line);
    let types = items(list);
    for unknown in types.iter().filter(|kind| !LINK_TYPES.contains(&kind.as_str())) {
        diagnostics
            .warn(line, format!("link type {unknown:?} is none of {}", LINK_TYPES.join(", ")));
    }
    conditions.one_of("dra.net/encapsulation", &types);
}

//! Nodes for a pipeline, from a file of boards, a recording, or a cluster.

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1;
use windlass_control::spare::FreeNode;
use windlass_pipeline::{
    Capacity, Fleet, Pipeline,
    fleet::{FreeDevice, Node, NodeLink, Overhead},
    pipeline::{DeviceRequirement, Stage},
    quantity::Bytes,
    taint::Taint,
};

use crate::{cli::FleetArgs, commands::cluster, exit::UsageError};

/// Reads the nodes.
pub(super) async fn fleet(args: &FleetArgs, pipeline: &Pipeline) -> Result<Fleet> {
    let fleet = if let Some(path) = &args.boards {
        super::read(path, Fleet::parse)?
    } else {
        let link = NodeLink { rate: args.link_rate, delay: args.link_delay };
        let free_nodes = cluster::objects(&args.view).await?.free_nodes(Some(&pipeline.name));
        Fleet {
            nodes: free_nodes.into_iter().map(|node| to_node(node, link, pipeline)).collect(),
            is_simulated: false,
            overhead: Overhead::default(),
        }
    };
    if fleet.nodes.is_empty() {
        let problem =
            anyhow!("no node accepts pods: each is cordoned or not ready, or there is no node");
        return Err(UsageError(problem).into());
    }
    Ok(fleet)
}

/// Converts a node. Of each counted resource it has at most as many devices as the pipeline can use: some nodes offer a
/// thousand of one resource.
fn to_node(node: FreeNode, link: NodeLink, pipeline: &Pipeline) -> Node {
    let usable = |resource: &str| -> u32 {
        let requirement = DeviceRequirement::Resource(resource.to_owned());
        let can_use = |stage: &&Stage| {
            stage.alternatives.iter().any(|alternative| alternative.device == requirement)
        };
        pipeline.stages.iter().filter(can_use).map(|stage| stage.max_replicas).sum()
    };
    let counted_devices = node.resources.iter().flat_map(|(resource, count)| {
        (0..usable(resource).min(*count)).map(move |number| FreeDevice {
            name: format!("{resource}-{number}"),
            resource: Some(resource.clone()),
            classes: Vec::new(),
            published: None,
        })
    });
    let published_devices = node.devices.into_iter().map(|free| FreeDevice {
        name: free.device.id().to_owned(),
        resource: None,
        classes: free.classes,
        published: Some(free.device),
    });
    let devices = counted_devices.chain(published_devices).collect();
    Node {
        name: node.name,
        board: String::new(),
        free: Capacity { cpus: node.cpus, memory: Bytes(node.memory) },
        labels: node.labels,
        taints: node.taints.into_iter().map(to_taint).collect(),
        link,
        devices,
    }
}

fn to_taint(taint: v1::Taint) -> Taint {
    Taint { key: taint.key, value: taint.value.unwrap_or_default(), effect: taint.effect }
}

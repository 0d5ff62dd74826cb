//! The nodes on which a pipeline is to run: a file of boards, a recording, or a cluster.

use anyhow::{Result, anyhow};
use windlass_control::spare::SpareNode;
use windlass_pipeline::{
    Fleet,
    fleet::{FreeDevice, Node, NodeLink, Overhead},
};

use super::text;
use crate::{cli::FleetArgs, commands::cluster, exit::Misuse};

/// Reads the nodes.
pub(super) async fn fleet(args: &FleetArgs) -> Result<Fleet> {
    let fleet = if let Some(path) = &args.boards {
        let read = || Ok(Fleet::parse(path, &text(path)?)?);
        read().map_err(Misuse)?
    } else {
        let link = NodeLink { rate: args.link_rate, delay: args.link_delay };
        let spare = cluster::objects(&args.view).await?.spare();
        Fleet {
            nodes: spare.into_iter().map(|node| of_cluster(node, link)).collect(),
            is_simulated: false,
            overhead: Overhead::default(),
        }
    };
    if fleet.nodes.is_empty() {
        let problem = anyhow!(
            "there is no node that takes pods: nodes are cordoned, tainted or not ready, or there is none"
        );
        return Err(Misuse(problem).into());
    }
    Ok(fleet)
}

fn of_cluster(node: SpareNode, link: NodeLink) -> Node {
    let counted = node.resources.iter().flat_map(|(resource, count)| {
        (0..*count).map(move |number| FreeDevice {
            name: format!("{resource}-{number}"),
            resource: Some(resource.clone()),
            classes: Vec::new(),
            published: None,
        })
    });
    let published = node.devices.into_iter().map(|one| FreeDevice {
        name: one.device.id().to_owned(),
        resource: None,
        classes: one.classes,
        published: Some(one.device),
    });
    let devices = counted.chain(published).collect();
    Node { name: node.name, board: String::new(), cpus: node.cpus, link, devices }
}

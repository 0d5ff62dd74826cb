//! The nodes of the cluster, as objects of an embedded API server.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{Policy, ShareResources};
use windlass_core::annotation::{NodeDevice, NodeDevices};

use super::pods::{GPU_COMPUTE, GPU_MEMORY};
use crate::demo::testbed::NODE;

/// API server with the nodes.
#[derive(Debug)]
pub(in crate::demo) struct Fleet {
    server: ApiServer,
}

/// Nodes of one model.
struct Model {
    prefix: &'static str,
    nodes: usize,
    gpus: usize,
    product: &'static str,
    memory_mib: u32,
}

/// The simulated nodes. `memory_mib` is the memory that NVIDIA's driver reports for the product.
const MODELS: [Model; 2] = [
    Model {
        prefix: "node-h100",
        nodes: 119,
        gpus: 8,
        product: "NVIDIA H100 80GB HBM3",
        memory_mib: 81_559,
    },
    Model { prefix: "node-a10", nodes: 80, gpus: 4, product: "NVIDIA A10", memory_mib: 23_028 },
];

/// CPU cores, and GiB of main memory, of a node for each of its GPUs.
const CORES_PER_GPU: usize = 14;
const GIB_PER_GPU: usize = 192;

// === impl Fleet ===

impl Fleet {
    /// Starts the API server, and creates the nodes. The agent's node has no GPUs yet: the agent publishes them.
    pub(in crate::demo) fn start() -> Result<Self> {
        let server = ApiServer::start();
        for model in MODELS {
            for number in 0..model.nodes {
                let name = format!("{}-{number:03}", model.prefix);
                let device = |gpu: usize| {
                    Ok(NodeDevice {
                        id: format!("GPU-{name}-{gpu}").parse()?,
                        model: model.product.to_owned(),
                        memory_mib: model.memory_mib,
                        failed: false,
                        obstacle: None,
                        only_for: None,
                    })
                };
                let devices = (0..model.gpus).map(device).collect::<Result<_>>();
                let devices = devices.context("an id is invalid")?;
                let devices = NodeDevices { devices, ..NodeDevices::default() };
                server.objects().put(&node(&name, model.gpus, Some(&devices))?);
            }
        }
        server.objects().put(&node(NODE, 8, None)?);
        Ok(Self { server })
    }

    pub(in crate::demo) fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Sets the agent's options that the cluster half requires.
    pub(in crate::demo) fn configure_agent(policy: &mut Policy) -> Result<()> {
        policy.labels.devices = true;
        policy.shares = ShareResources {
            memory: Some(GPU_MEMORY.parse()?),
            compute: Some(GPU_COMPUTE.parse()?),
            ..ShareResources::default()
        };
        Ok(())
    }
}

fn node(name: &str, gpus: usize, devices: Option<&NodeDevices>) -> Result<Node> {
    let annotations =
        devices.map(|devices| json!({NodeDevices::ANNOTATION: devices.to_annotation()}));
    let (cores, gib) = (gpus * CORES_PER_GPU, gpus * GIB_PER_GPU);
    let node = json!({
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": {
            "cpu": cores.to_string(), "memory": format!("{gib}Gi"), "pods": "110",
        }},
    });
    serde_json::from_value(node).context("the node is not a valid Node object")
}

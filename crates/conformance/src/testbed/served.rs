//! Resources of a device plugin, from the kubelet's status.

use std::path::PathBuf;

use tonic::transport::Channel;
use windlass_kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use windlass_kubelet_sim::{Device, NodeStatus, PluginOptions, PluginStatus};

use super::dial;
use crate::case::{CheckError, failed};

/// Registered resource with a device list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedResource {
    pub(crate) resource: String,
    pub(crate) socket: PathBuf,
    pub(crate) options: PluginOptions,
    pub(crate) devices: Vec<Device>,
}

/// gRPC client of a plugin.
pub(crate) type Client = DevicePluginClient<Channel>;

// === impl ServedResource ===

impl ServedResource {
    /// All resources that are connected and have sent a list, by name.
    pub(crate) fn all(node: &NodeStatus) -> Vec<Self> {
        let served = |(resource, status): (&String, &PluginStatus)| {
            let PluginStatus::Connected { endpoint, options } = status else { return None };
            let devices = node.resources.get(resource)?.devices.values().cloned().collect();
            let (resource, socket, options) = (resource.clone(), endpoint.clone(), *options);
            Some(Self { resource, socket, options, devices })
        };
        node.plugins.iter().filter_map(served).collect()
    }

    /// Ids of its healthy devices.
    pub(crate) fn healthy_ids(&self) -> Vec<String> {
        let healthy = self.devices.iter().filter(|device| device.is_healthy());
        healthy.map(|device| device.id.clone()).collect()
    }

    /// Connects to its plugin as the kubelet does.
    pub(crate) async fn dial(&self) -> Result<Client, CheckError> {
        match dial(&self.socket).await {
            Ok(channel) => Ok(Client::new(channel)),
            Err(error) => failed(format!("{}: {error}", self.resource)),
        }
    }
}

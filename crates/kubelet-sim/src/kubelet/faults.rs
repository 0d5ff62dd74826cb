//! Faults of a running kubelet and of its surroundings.

use std::io;

use tonic::transport::Channel;
use windlass_kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;

use super::{Kubelet, KubeletError, State, admit_again, set_sources_ready};
use crate::{
    directory,
    fault::{Misbehaviour, PodFault},
    manager_task::ManagerTask,
};

impl Kubelet {
    /// Sets the faults from now on, over restarts too.
    pub fn misbehave(&self, how: Misbehaviour) {
        self.faults.send_replace(how);
    }

    /// Reaches the API server, and learns all pods of the node. Unknown pods are admitted once
    /// more. From now on the kubelet forgets the holdings of gone pods.
    pub async fn reach_api_server(&self) {
        let _pods_wait = self.sync_loop.lock().await;
        let mut told = PodFault::None;
        self.faults.send_modify(|how| told = std::mem::take(&mut how.pods));
        let Some((handle, ended)) = self.handle() else { return };
        let unknown = move |task: &ManagerTask| -> Vec<_> {
            let active = task.manager.pods.values().filter(|record| record.is_active());
            let pods = active.map(|record| record.pod.clone());
            pods.filter(|pod| !told.knows(&pod.uid)).collect()
        };
        // A stopped kubelet admits no pod.
        let pods = handle.read(unknown).await.unwrap_or_default();
        admit_again((&handle, &ended), pods).await;
        set_sources_ready(&handle).await;
    }

    /// Deletes `kubelet.sock` and binds it again, `times` in a row, without a restart. A plugin
    /// that watches the folder sees a new kubelet. The socket's connections are cut; state and
    /// streams stay.
    pub fn replace_registration_socket(&self, times: usize) -> Result<(), KubeletError> {
        if let State::Running(life) = &mut *self.state() {
            for _ in 0..times {
                life.replace_registration_socket()?;
            }
        }
        Ok(())
    }

    /// Deletes one file in the plugin folder, such as a plugin's socket.
    pub fn delete_socket(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.config.plugin_dir().join(name))
    }

    /// Deletes every socket in the plugin folder, `kubelet.sock` too, without a restart.
    pub fn delete_sockets(&self) -> Result<(), KubeletError> {
        Ok(directory::wipe_sockets(&self.config.plugin_dir())?)
    }

    /// Cuts the connection to the plugin behind a resource.
    pub async fn cancel_stream(&self, resource: &str) {
        let resource = resource.to_owned();
        let cut = move |task: &ManagerTask| {
            let endpoint = task.manager.endpoints.get(&resource);
            if let Some(plugin) = endpoint.and_then(|endpoint| endpoint.plugin.as_ref()) {
                plugin.cut();
            }
        };
        if let Some((handle, _)) = self.handle() {
            // A stopped kubelet has no streams.
            let _ = handle.read(cut).await;
        }
    }

    /// A raw client on the kubelet's own connection to a resource's plugin, for calls outside of
    /// the kubelet's protocol. The client keeps that connection open.
    pub async fn plugin(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let (handle, _) = self.handle()?;
        let resource = resource.to_owned();
        let find = move |task: &ManagerTask| {
            let endpoint = task.manager.endpoints.get(&resource)?;
            Some(endpoint.plugin.as_ref()?.client())
        };
        handle.read(find).await.ok()?
    }
}

//! Fault injection into a running kubelet, its sockets and its connections.

use std::io;

use tonic::transport::Channel;
use windlass_kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;

use super::{Kubelet, KubeletError, State, readmit_pods, set_sources_ready};
use crate::{
    directory,
    fault::{Faults, PodSourceFault},
    manager_task::ManagerTask,
};

impl Kubelet {
    /// Replaces all faults. They persist over restarts.
    pub fn set_faults(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// Ends [`PodSourceFault::Only`]: the kubelet reaches the API server, learns all pods of the node, and
    /// admits the ones that it did not know. From now on, garbage collection frees the devices of
    /// deleted pods.
    pub async fn reach_api_server(&self) {
        let _sync_loop = self.sync_loop.lock().await;
        let mut previous = PodSourceFault::None;
        self.faults.send_modify(|faults| previous = std::mem::take(&mut faults.pods));
        let Some((handle, ended)) = self.handle() else { return };
        let find_unknown_pods = move |task: &ManagerTask| -> Vec<_> {
            let active = task.manager.pods.values().filter(|record| record.is_active());
            let pods = active.map(|record| record.pod.clone());
            pods.filter(|pod| !previous.knows_pod(&pod.uid)).collect()
        };
        // A stopped kubelet admits no pod.
        let pods = handle.read(find_unknown_pods).await.unwrap_or_default();
        readmit_pods((&handle, &ended), pods).await;
        set_sources_ready(&handle).await;
    }

    /// Deletes `kubelet.sock` and binds it again, `times` in a row, without a restart. To a plugin
    /// that watches the folder, this looks like a kubelet restart. Connections to `kubelet.sock`
    /// close; the managers' state and the `ListAndWatch` streams stay. A stopped kubelet does nothing.
    pub fn replace_registration_socket(&self, times: usize) -> Result<(), KubeletError> {
        if let State::Running(run) = &mut *self.state() {
            for _ in 0..times {
                run.replace_registration_socket()?;
            }
        }
        Ok(())
    }

    /// Deletes one file in the plugin folder, such as a plugin's socket.
    pub fn delete_socket(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.config.plugin_dir().join(name))
    }

    /// Deletes every socket in the plugin folder, including `kubelet.sock`, without a restart.
    pub fn delete_sockets(&self) -> Result<(), KubeletError> {
        Ok(directory::delete_sockets(&self.config.plugin_dir())?)
    }

    /// Closes the kubelet's connection to the plugin of a resource.
    pub async fn close_plugin_connection(&self, resource: &str) {
        let resource = resource.to_owned();
        let close = move |task: &ManagerTask| {
            let endpoint = task.manager.endpoints.get(&resource);
            if let Some(plugin) = endpoint.and_then(|endpoint| endpoint.plugin.as_ref()) {
                plugin.close();
            }
        };
        if let Some((handle, _)) = self.handle() {
            // A stopped kubelet has no streams.
            let _ = handle.read(close).await;
        }
    }

    /// gRPC client on the kubelet's own connection to the plugin of a resource. Tests use it for calls
    /// that a kubelet does not make. The connection stays open as long as the client exists.
    pub async fn plugin_client(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let (handle, _) = self.handle()?;
        let resource = resource.to_owned();
        let find = move |task: &ManagerTask| {
            let endpoint = task.manager.endpoints.get(&resource)?;
            Some(endpoint.plugin.as_ref()?.client())
        };
        handle.read(find).await.ok()?
    }
}

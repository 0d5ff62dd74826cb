//! Tasks of one registered endpoint: read its health stream, and publish changes of its connection.

use super::{driver::Driver, health::HealthReport};
use crate::{
    event::Event,
    manager_task::{KubeletEnded, ManagerHandle, ManagerTask},
    plugin::RpcError,
};

/// Reads an endpoint's health until the endpoint is closed, then drops the driver's health.
pub(super) async fn watch_health(handle: ManagerHandle, driver: Driver) {
    tokio::select! {
        // Returns only if the kubelet ended.
        _ = read_streams(&handle, &driver) => {}
        () = driver.closed() => {}
    }
    let name = driver.name.clone();
    let _ = handle.update(move |task| task.dra.health.clear(&name)).await;
}

/// Publishes the node's status at each change of the endpoint's connection.
pub(super) async fn publish_connection(handle: ManagerHandle, driver: Driver) {
    let mut connected = driver.connected.clone();
    loop {
        tokio::select! {
            changed = connected.changed() => if changed.is_err() { return },
            () = driver.closed() => return,
        }
        // An empty update publishes the status, which reads the state of the connection.
        if handle.update(|_| ()).await.is_err() {
            return;
        }
    }
}

/// Reads one stream after the other, with a pause after each.
async fn read_streams(handle: &ManagerHandle, driver: &Driver) -> Result<(), KubeletEnded> {
    loop {
        let reason = read_stream(handle, driver).await?;
        let (name, endpoint) = (driver.name.clone(), driver.endpoint().to_owned());
        let record_end = move |task: &mut ManagerTask| {
            task.dra.health.clear(&name);
            task.events.push(Event::HealthStreamEnded { driver: name, endpoint, reason });
            task.config.dra.health_retry_delay
        };
        let retry_delay = handle.update(record_end).await?;
        tokio::time::sleep(retry_delay).await;
    }
}

/// Reads a stream until it ends. Returns the reason of the end.
async fn read_stream(handle: &ManagerHandle, driver: &Driver) -> Result<String, KubeletEnded> {
    let mut stream = match driver.watch_resources().await {
        Ok(stream) => stream,
        Err(error) => return Ok(error.to_string()),
    };
    loop {
        match stream.message().await {
            Ok(Some(list)) => {
                let name = driver.name.clone();
                let reports = list.devices.into_iter().map(HealthReport::from_proto).collect();
                handle.update(move |task| task.update_health(name, reports)).await?;
            }
            Ok(None) => return Ok("EOF".to_owned()),
            Err(status) => return Ok(RpcError::from(status).to_string()),
        }
    }
}

// === impl ManagerTask, for health ===

impl ManagerTask {
    /// Stores a driver's reports, and syncs the pods that use a device with changed health.
    fn update_health(&mut self, driver: String, reports: Vec<HealthReport>) {
        let changed = self.dra.health.update(&driver, reports);
        let claims = &self.dra.claims;
        let users =
            changed.iter().flat_map(|report| claims.users(&driver, &report.pool, &report.device));
        let mut pods: Vec<String> = users.collect();
        pods.sort();
        pods.dedup();
        self.events.push(Event::HealthReceived { driver });
        if !pods.is_empty() {
            self.events.push(Event::PodsSynced { pods });
        }
    }
}

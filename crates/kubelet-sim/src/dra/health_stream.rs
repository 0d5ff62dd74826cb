//! Health stream of one registered endpoint: opened, read, and opened again after its end.

use super::{driver::Driver, health::Said};
use crate::{
    event::Event,
    manager_task::{Gone, ManagerHandle, ManagerTask},
    plugin::RpcError,
};

/// Follows an endpoint's health until the endpoint is given up.
pub(super) async fn follow(handle: ManagerHandle, driver: Driver) {
    tokio::select! {
        // A stopped kubelet needs no health.
        _ = keep_open(&handle, &driver) => {}
        () = driver.closed() => {}
    }
    let name = driver.name.clone();
    let _ = handle.update(move |task| task.dra.health.clear(&name)).await;
}

/// Publishes each change of the connection.
pub(super) async fn show_connection(handle: ManagerHandle, driver: Driver) {
    let mut connected = driver.connected.clone();
    loop {
        tokio::select! {
            changed = connected.changed() => if changed.is_err() { return },
            () = driver.closed() => return,
        }
        // The function is empty: the status reads the connection.
        if handle.update(|_| ()).await.is_err() {
            return;
        }
    }
}

async fn keep_open(handle: &ManagerHandle, driver: &Driver) -> Result<(), Gone> {
    loop {
        let reason = read(handle, driver).await?;
        let (name, endpoint) = (driver.name.clone(), driver.endpoint().to_owned());
        let end = move |task: &mut ManagerTask| {
            task.dra.health.clear(&name);
            task.events.push(Event::HealthEnded { driver: name, endpoint, reason });
            task.config.dra.health_pause
        };
        let pause = handle.update(end).await?;
        tokio::time::sleep(pause).await;
    }
}

/// Reads a stream until it ends. Returns the reason of the end.
async fn read(handle: &ManagerHandle, driver: &Driver) -> Result<String, Gone> {
    let mut stream = match driver.watch().await {
        Ok(stream) => stream,
        Err(error) => return Ok(error.to_string()),
    };
    loop {
        match stream.message().await {
            Ok(Some(list)) => {
                let name = driver.name.clone();
                let list = list.devices.into_iter().map(Said::from_proto).collect();
                handle.update(move |task| task.take_health(name, list)).await?;
            }
            Ok(None) => return Ok("EOF".to_owned()),
            Err(status) => return Ok(RpcError::from(status).to_string()),
        }
    }
}

// === impl ManagerTask, for health ===

impl ManagerTask {
    fn take_health(&mut self, driver: String, list: Vec<Said>) {
        let changed = self.dra.health.update(&driver, list);
        let claims = &self.dra.claims;
        let users = changed.iter().flat_map(|said| claims.users(&driver, &said.pool, &said.device));
        let mut pods: Vec<String> = users.collect();
        pods.sort();
        pods.dedup();
        self.events.push(Event::HealthReceived { driver });
        if !pods.is_empty() {
            self.events.push(Event::PodsSynced { pods });
        }
    }
}

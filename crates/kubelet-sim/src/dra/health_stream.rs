//! Health stream of one registered endpoint: opened, read, and opened again after its end.

use super::{driver::Driver, health::Said};
use crate::{
    desk::{Desk, Gone, Owner},
    event::Event,
    plugin::RpcError,
};

/// Follows an endpoint's health until the endpoint is given up.
pub(super) async fn follow(owner: Owner, driver: Driver) {
    tokio::select! {
        // A stopped kubelet needs no health.
        _ = keep_open(&owner, &driver) => {}
        () = driver.closed() => {}
    }
    let name = driver.name.clone();
    let _ = owner.with(move |desk| desk.dra.health.clear(&name)).await;
}

/// Publishes each change of the connection.
pub(super) async fn show_connection(owner: Owner, driver: Driver) {
    let mut connected = driver.connected.clone();
    loop {
        tokio::select! {
            changed = connected.changed() => if changed.is_err() { return },
            () = driver.closed() => return,
        }
        // The function is empty: the status reads the connection.
        if owner.with(|_| ()).await.is_err() {
            return;
        }
    }
}

async fn keep_open(owner: &Owner, driver: &Driver) -> Result<(), Gone> {
    loop {
        let reason = read(owner, driver).await?;
        let (name, endpoint) = (driver.name.clone(), driver.endpoint().to_owned());
        let end = move |desk: &mut Desk| {
            desk.dra.health.clear(&name);
            desk.events.push(Event::HealthEnded { driver: name, endpoint, reason });
            desk.config.dra.health_pause
        };
        let pause = owner.with(end).await?;
        tokio::time::sleep(pause).await;
    }
}

/// Reads a stream until it ends. Returns the reason of the end.
async fn read(owner: &Owner, driver: &Driver) -> Result<String, Gone> {
    let mut stream = match driver.watch().await {
        Ok(stream) => stream,
        Err(error) => return Ok(error.to_string()),
    };
    loop {
        match stream.message().await {
            Ok(Some(list)) => {
                let name = driver.name.clone();
                let list = list.devices.into_iter().map(Said::from_proto).collect();
                owner.with(move |desk| desk.take_health(name, list)).await?;
            }
            Ok(None) => return Ok("EOF".to_owned()),
            Err(status) => return Ok(RpcError::from(status).to_string()),
        }
    }
}

// === impl Desk, for health ===

impl Desk {
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

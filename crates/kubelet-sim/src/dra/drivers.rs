//! Registered DRA drivers with their endpoints, and the choice of the endpoint to call.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{ClaimError, driver::Driver};

/// Endpoints by driver name, in the order of registration.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    by_name: BTreeMap<String, Vec<Driver>>,
}

/// The driver has registered this endpoint already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {} already registered for DRA driver plugin {driver}", endpoint.display())]
pub(crate) struct EndpointAlreadyRegistered {
    driver: String,
    endpoint: PathBuf,
}

// === impl Drivers ===

impl Drivers {
    /// Adds the newest endpoint of a driver.
    pub(crate) fn add(&mut self, driver: Driver) -> Result<(), EndpointAlreadyRegistered> {
        let endpoints = self.by_name.entry(driver.name.clone()).or_default();
        if endpoints.iter().any(|other| other.endpoint() == driver.endpoint()) {
            let endpoint = driver.endpoint().to_owned();
            return Err(EndpointAlreadyRegistered { driver: driver.name, endpoint });
        }
        endpoints.push(driver);
        Ok(())
    }

    /// Removes and closes an endpoint.
    pub(crate) fn remove(&mut self, name: &str, endpoint: &Path) {
        let Some(endpoints) = self.by_name.get_mut(name) else { return };
        let removed = endpoints.extract_if(.., |other| other.endpoint() == endpoint);
        removed.for_each(|driver| driver.close());
        if endpoints.is_empty() {
            self.by_name.remove(name);
        }
    }

    /// Endpoint to call: the newest connected one, otherwise the newest one.
    pub(crate) fn find(&self, name: &str) -> Result<Driver, ClaimError> {
        if name.is_empty() {
            return Err(ClaimError::NoDriverName);
        }
        let endpoints = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let connected = endpoints.iter().rev().find(|driver| *driver.connected.borrow());
        let driver = connected.or(endpoints.last()).cloned();
        driver.ok_or_else(|| ClaimError::NotRegistered(name.to_owned()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Vec<Driver>)> {
        self.by_name.iter()
    }
}

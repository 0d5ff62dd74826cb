//! A cluster's index with the watches that keep it up to date.

use std::{path::PathBuf, sync::Arc};

use windlass_host::shared::Shared;

use crate::{
    access::{self, NoAccess},
    index::Index,
    watches,
};

/// A cluster's index, kept up to date by watches.
#[expect(missing_debug_implementations, reason = "a client of kube has none")]
pub struct LiveIndex {
    pub(crate) index: Arc<Shared<Index>>,
    pub(crate) client: kube::Client,
}

// === impl LiveIndex ===

impl LiveIndex {
    /// Connects with this kubeconfig; `None` searches for credentials as kubectl does.
    ///
    /// # Errors
    ///
    /// No credentials.
    pub async fn connect(kubeconfig: Option<PathBuf>) -> Result<Self, NoAccess> {
        Ok(Self { index: Arc::default(), client: access::client(kubeconfig).await? })
    }

    /// Runs the watches. Never returns: drop the future to stop.
    pub async fn run(&self) {
        watches::watch_all(self.client.clone(), self.index.clone()).await;
    }

    /// Returns `read(index)`; `None` until all objects have been read.
    pub fn with_index<T>(&self, read: impl FnOnce(&mut Index) -> T) -> Option<T> {
        self.index.with_lock(|index| index.is_synced().then(|| read(index)))
    }
}

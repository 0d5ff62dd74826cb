//! A view of a cluster that is kept up to date.

use std::{path::PathBuf, sync::Arc};

use windlass_host::shared::Shared;

use crate::{
    access::{self, NoAccess},
    index::Index,
    watches,
};

/// A view of a cluster, and the watches that keep it.
#[expect(missing_debug_implementations, reason = "a client of kube has none")]
pub struct Live {
    pub(crate) index: Arc<Shared<Index>>,
    pub(crate) client: kube::Client,
}

// === impl Live ===

impl Live {
    /// Connects with kubectl's access, or with that of the kubeconfig.
    ///
    /// # Errors
    ///
    /// No credentials.
    pub async fn connect(kubeconfig: Option<PathBuf>) -> Result<Self, NoAccess> {
        Ok(Self { index: Arc::default(), client: access::client(kubeconfig).await? })
    }

    /// Keeps the view, and ends with its future only.
    pub async fn follow(&self) {
        watches::follow(self.client.clone(), self.index.clone()).await;
    }

    /// Looks at the view; `None` until all objects were seen once.
    pub fn look<T>(&self, look: impl FnOnce(&mut Index) -> T) -> Option<T> {
        self.index.step(|index| index.is_synced().then(|| look(index)))
    }
}

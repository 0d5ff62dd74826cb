//! Access to the API server: a kubeconfig, the one of kubectl, or the account of the pod.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::RunError;

/// Reads the credentials. Without a path, `KUBECONFIG` and `~/.kube/config` come before the pod's account.
pub(crate) async fn access(kubeconfig: Option<PathBuf>) -> Result<kube::Config, RunError> {
    let Some(path) = kubeconfig else {
        return kube::Config::infer().await.map_err(no_access);
    };
    let file = Kubeconfig::read_from(path).map_err(no_access)?;
    let read = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    read.map_err(no_access)
}

pub(crate) fn no_access(error: impl std::error::Error + Send + Sync + 'static) -> RunError {
    RunError::NoAccess(Box::new(error))
}

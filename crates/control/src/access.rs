//! Client for the API server (from a kubeconfig, or the pod's service account), and paged lists.

use std::{fmt::Debug, path::PathBuf, time::Duration};

use kube::{
    Api,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;

/// Number of objects per page of a list.
pub(crate) const PAGE_SIZE: u32 = 500;
/// Deadline of a request for one object.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// No usable credentials.
#[derive(Debug, thiserror::Error)]
#[error("no access to the API server: give --kubeconfig, or run in a pod with a service account")]
pub struct NoAccess(#[source] Box<dyn std::error::Error + Send + Sync>);

/// A request that the API server refused, did not answer, or answered unreadably.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    message: String,
    /// HTTP status of a refusal.
    code: Option<u16>,
}

// === impl RequestError ===

impl RequestError {
    /// True if the object or its kind does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code == Some(404)
    }

    /// True if the same request may succeed later: the API server is unreachable, fails (5xx), or is overloaded (429).
    pub(crate) fn is_transient(&self) -> bool {
        self.code.is_none_or(|code| code >= 500 || code == 429)
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self { message: windlass_host::causes(&error), code: None };
        };
        let message = match status.message.trim() {
            "" => format!("the API server answered {}", status.code),
            message => message.to_owned(),
        };
        Self { message, code: Some(status.code) }
    }
}

/// Reads the credentials. Without a path, `KUBECONFIG` and `~/.kube/config` take precedence over the pod's service
/// account.
pub(crate) async fn load_kube_config(
    kubeconfig: Option<PathBuf>,
) -> Result<kube::Config, NoAccess> {
    let Some(path) = kubeconfig else {
        return kube::Config::infer().await.map_err(no_access);
    };
    let file = Kubeconfig::read_from(path).map_err(no_access)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.map_err(no_access)
}

/// A client with these credentials.
pub(crate) async fn client(kubeconfig: Option<PathBuf>) -> Result<kube::Client, NoAccess> {
    kube::Client::try_from(load_kube_config(kubeconfig).await?).map_err(no_access)
}

pub(crate) fn no_access(error: impl std::error::Error + Send + Sync + 'static) -> NoAccess {
    NoAccess(Box::new(error))
}

/// Lists all objects of a kind, page by page, and returns `convert(object)` of each.
pub(crate) async fn list<K, T>(api: &Api<K>, convert: impl Fn(K) -> T) -> kube::Result<Vec<T>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut objects, mut parameters) = (Vec::new(), ListParams::default().limit(PAGE_SIZE));
    loop {
        let page = api.list(&parameters).await?;
        objects.extend(page.items.into_iter().map(&convert));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

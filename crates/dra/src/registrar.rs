//! Registration of the DRA driver: the kubelet finds its socket, calls `GetInfo`, and reports the result.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use windlass_config::DriverName;
use windlass_kubelet_api::{
    dra::SERVICES,
    pluginregistration::{
        DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
};

/// State of the driver's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RegistrationState {
    /// The driver is not needed.
    #[default]
    Off,
    /// The driver cannot serve, for this reason.
    Failing(String),
    /// The driver serves, and is not registered yet.
    Serving,
    /// The kubelet registered the driver.
    Registered,
    /// The kubelet rejected the driver, for this reason.
    Rejected(String),
}

/// Answers the kubelet's registration calls.
#[derive(Debug)]
pub(super) struct Registrar {
    pub(super) driver: DriverName,
    /// Path of the socket that serves the DRA calls.
    pub(super) endpoint: String,
    pub(super) state: watch::Sender<RegistrationState>,
}

// === impl RegistrationState ===

impl RegistrationState {
    pub(crate) const NAMES: [&str; 5] = ["off", "failing", "serving", "registered", "rejected"];

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Failing(_) => "failing",
            Self::Serving => "serving",
            Self::Registered => "registered",
            Self::Rejected(_) => "rejected",
        }
    }
}

// === impl Registrar ===

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: self.driver.to_string(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(ToOwned::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let state = if plugin_registered {
            tracing::info!(driver = %self.driver, "DRA driver registered with the kubelet");
            RegistrationState::Registered
        } else {
            tracing::error!(driver = %self.driver, error, "the kubelet rejected the DRA driver");
            RegistrationState::Rejected(error)
        };
        self.state.send_replace(state);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

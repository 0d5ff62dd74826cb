//! How the kubelet learns of the driver: it finds a socket in its folder of plugins, asks who is there, and
//! says whether it took the answer.

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

/// How the driver stands with the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing is offered, and nothing is prepared.
    #[default]
    Off,
    /// It cannot serve, and why.
    Failing(String),
    /// It serves, and the kubelet has not registered it yet.
    Serving,
    /// The kubelet has it.
    Registered,
    /// The kubelet does not want it, and why.
    Rejected(String),
}

/// Answers the kubelet's questions about the driver.
#[derive(Debug)]
pub(super) struct Registrar {
    pub(super) driver: DriverName,
    /// Where the driver's own calls are served.
    pub(super) endpoint: String,
    pub(super) standing: watch::Sender<Standing>,
}

// === impl Standing ===

impl Standing {
    /// The names of all states.
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
        let standing = if plugin_registered {
            tracing::info!(driver = %self.driver, "the kubelet has registered the DRA driver");
            Standing::Registered
        } else {
            tracing::error!(driver = %self.driver, error, "the kubelet refuses the DRA driver");
            Standing::Rejected(error)
        };
        self.standing.send_replace(standing);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

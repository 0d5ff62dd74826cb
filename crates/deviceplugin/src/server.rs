//! The server of one resource, and the session that keeps it registered.

use tokio_util::sync::CancellationToken;
use windlass_host::causes;
use windlass_kubelet_api::{
    dated::Dated, deviceplugin::device_plugin_server::DevicePluginServer, endpoint::Endpoint,
    server::server,
};

use super::{service::Service, session::Session};

/// How long open calls may take to end when the agent stops. Streams end at once, since the state's
/// reconciler has ended before.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(2);

/// Serves, and keeps the resource registered, until stopped; removes the socket at the end.
pub(super) async fn serve(
    mut endpoint: Endpoint,
    service: Service,
    session: Session,
    stop: CancellationToken,
) {
    let incoming = endpoint.incoming();
    let server = server()
        .add_service(Dated(DevicePluginServer::new(service)))
        .serve_with_incoming_shutdown(incoming, stop.cancelled());
    let session = async {
        session.run(&mut endpoint, &stop).await;
        endpoint.close();
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        outcome = server => {
            if let Err(error) = outcome {
                tracing::error!(error = causes(&error), "the server failed");
            }
        }
        () = session => {}
    }
    endpoint.close();
}

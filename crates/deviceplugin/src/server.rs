//! gRPC server of one resource, run beside its kubelet session.

use tokio_util::sync::CancellationToken;
use windlass_host::causes;
use windlass_kubelet_api::{
    dated::WithDateHeader, deviceplugin::device_plugin_server::DevicePluginServer,
    endpoint::Endpoint, server::server,
};

use super::{service::Service, session::Session};

/// Deadline for open calls at shutdown. `ListAndWatch` streams end earlier, with the reconciler.
const DRAIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Serves the resource and keeps it registered until stopped; then removes the socket.
pub(super) async fn serve(
    mut endpoint: Endpoint,
    service: Service,
    session: Session,
    stop: CancellationToken,
) {
    let resource = session.resource.clone();
    let incoming = endpoint.incoming();
    let server = server()
        // `WithDateHeader`: hyper panics at dates before 1970.
        .add_service(WithDateHeader(DevicePluginServer::new(service)))
        .serve_with_incoming_shutdown(incoming, stop.cancelled());
    let session = async {
        session.run(&mut endpoint, &stop).await;
        endpoint.close();
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        outcome = server => {
            if let Err(error) = outcome {
                let (resource, error) = (resource.as_str(), causes(&error));
                tracing::error!(resource, error, "device plugin server failed");
            }
        }
        () = session => {}
    }
    endpoint.close();
}

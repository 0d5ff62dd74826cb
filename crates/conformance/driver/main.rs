//! DRA driver of the tests. `driver-with-defects KUBELET KUBECONFIG NODE SCRATCH DEFECT` conforms, except for the
//! defect that its last argument names. Its pool has six devices in two slices, and a seventh that claims may share.

#![expect(
    clippy::disallowed_methods,
    reason = "a test program that blocks and exits on purpose; its exit ends the tasks that it spawns"
)]

mod claims;
mod defect;
mod services;
mod slices;
mod sockets;

use std::{env, error::Error, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::signal::unix::{SignalKind, signal};

use self::{claims::Claims, defect::Defect, services::Services, sockets::Sockets};

/// Name of the driver and of its CDI vendor.
const DRIVER: &str = "dra.example.com";

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kubelet, kubeconfig, node, scratch, defect] = arguments.as_slice() else {
        return Err("usage: driver-with-defects KUBELET KUBECONFIG NODE SCRATCH DEFECT".into());
    };
    let defect: Defect = serde_json::from_value(defect.as_str().into())?;
    let client = client(kubeconfig, defect).await?;
    let sockets = Sockets::new(&PathBuf::from(kubelet), defect);
    let claims = Arc::new(Claims::open(client.clone(), PathBuf::from(scratch), defect)?);
    let services = Services::new(Arc::clone(&claims), &sockets.endpoint, node, defect);
    let mut sigterm = signal(SignalKind::terminate())?;
    tokio::select! {
        result = sockets.serve(services) => result?,
        () = slices::publish(client, node, defect) => {}
        _ = sigterm.recv() => {
            sockets.remove_registration();
            if defect == Defect::ReleasesAtTheEnd {
                claims.release_all();
            }
        }
    }
    Ok(())
}

async fn client(kubeconfig: &str, defect: Defect) -> Result<Client, BoxError> {
    let kubeconfig_file = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig_file, &options).await?;
    if defect == Defect::ExitsOnSlowApiServer {
        config.read_timeout = Some(Duration::from_secs(1));
    }
    Ok(Client::try_from(config)?)
}

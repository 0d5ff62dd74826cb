//! `windlass cluster extend`: kube-scheduler's extender.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use jiff::Timestamp;
use rustix::system::uname;
use tokio_util::sync::CancellationToken;
use windlass_control::{Config, PageConfig, TlsFiles};

use crate::{cli::ExtendArgs, exit::UsageError, logging, stop::StopSignals};

pub(super) async fn run(args: ExtendArgs) -> Result<()> {
    let config = config(&args).map_err(UsageError)?;
    logging::to_stderr(args.log_format, args.log.clone());
    let (mut signals, stop) = (StopSignals::listen()?, CancellationToken::new());
    let version = env!("CARGO_PKG_VERSION");
    let (tls, identity) = (config.tls.is_some(), config.identity.clone());
    let ready = move |address| {
        tracing::info!(version, %address, tls, identity, "windlass cluster extend started");
    };
    let mut serving = Box::pin(windlass_control::run(config, stop.clone(), ready));
    tokio::select! {
        result = &mut serving => return Ok(result?),
        signal = signals.recv() => tracing::info!(signal, "stopping"),
    }
    stop.cancel();
    serving.await?;
    tracing::info!("stopped");
    Ok(())
}

fn config(args: &ExtendArgs) -> Result<Config> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: args.tls_client_ca.clone(),
        }),
        _ => None,
    };
    ensure!(
        args.tls_client_ca.is_some() || args.listen.ip().is_loopback(),
        "--listen {}: any client could bind pods; give --tls-cert, --tls-key and --tls-client-ca, or listen on \
         127.0.0.1",
        args.listen
    );
    if let Some(page) = args.page_listen {
        ensure!(
            args.page_open || page.ip().is_loopback() || args.tls_cert.is_some(),
            "--page-listen {page}: readers' tokens would travel in the clear; give --tls-cert and --tls-key, or listen \
             on 127.0.0.1"
        );
    }
    let identity = args.identity.clone();
    let identity = identity.unwrap_or_else(|| uname().nodename().to_string_lossy().into_owned());
    if identity.is_empty() {
        return Err(anyhow!("--identity: this machine has no name, so give the replica one"));
    }
    // Two processes with one name are still two replicas.
    let identity =
        format!("{identity}_{}_{}", std::process::id(), Timestamp::now().as_millisecond());
    Ok(Config {
        listen: args.listen,
        metrics: args.metrics_listen,
        page: args
            .page_listen
            .map(|listen| PageConfig { listen, allows_anonymous: args.page_open }),
        tls,
        kubeconfig: args.kubeconfig.clone(),
        namespace: args.namespace.clone(),
        lease: args.lease.clone(),
        identity,
        gang_wait: Duration::from_secs(args.gang_wait),
    })
}

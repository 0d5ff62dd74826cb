//! `windlass cluster page`: the page, for browsers of this machine.

use anyhow::{Result, ensure};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use windlass_control::{PageSource, run_page};

use super::view;
use crate::{
    cli::PageArgs,
    exit::UsageError,
    logging::{self, LogFormat},
    screen::print_line,
    stop::StopSignals,
};

pub(super) async fn run(args: PageArgs) -> Result<()> {
    check(&args).map_err(UsageError)?;
    let source = match args.view.from {
        None => PageSource::Cluster(args.view.kubeconfig.clone()),
        Some(_) => PageSource::Recording(Box::new(view::objects(&args.view).await?)),
    };
    logging::to_stderr(LogFormat::Text, Targets::new().with_default(LevelFilter::WARN));
    let (mut signals, stop) = (StopSignals::listen()?, CancellationToken::new());
    let ready = |address| drop(print_line(format!("http://{address}/  (Ctrl-C ends it)")));
    let mut serving = Box::pin(run_page(args.listen, source, &args.agents, stop.clone(), ready));
    tokio::select! {
        result = &mut serving => return Ok(result?),
        _ = signals.recv() => {}
    }
    stop.cancel();
    Ok(serving.await?)
}

fn check(args: &PageArgs) -> Result<()> {
    ensure!(
        args.listen.ip().is_loopback(),
        "--listen {}: any machine could read the page; listen on 127.0.0.1, or have the cluster half serve it \
         (`windlass cluster extend --page-listen`)",
        args.listen
    );
    Ok(())
}

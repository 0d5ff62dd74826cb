//! `windlass cluster doctor`: checks of a cluster.

use anyhow::Result;
use windlass_control::diagnosis::Evidence;

use super::view;
use crate::{cli::ClusterDoctorArgs, commands::doctor::Diagnosis};

pub(super) async fn run(args: ClusterDoctorArgs) -> Result<()> {
    let evidence = match &args.view.from {
        None => Evidence::fetch(args.view.kubeconfig.clone()).await?,
        Some(_) => Evidence::recorded(view::objects(&args.view).await?),
    };
    Diagnosis::new(evidence.findings()).show(args.output, args.all)
}

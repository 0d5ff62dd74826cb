//! `windlass pipeline render`: the manifests of a layout.

use anyhow::Result;
use windlass_pipeline::{Plan, manifests::manifests};

use super::{fleet, pipeline};
use crate::{cli::RenderArgs, exit::UsageError, screen::print_line};

pub(super) async fn run(args: RenderArgs) -> Result<()> {
    let pipeline = pipeline(&args.pipeline)?;
    let fleet = fleet::fleet(&args.fleet, &pipeline).await?;
    let plan = Plan::of(&pipeline, &fleet, args.layout)?;
    let objects = manifests(&pipeline, &fleet, &plan).map_err(|error| UsageError(error.into()))?;
    let name = args.layout.name();
    print_line(format_args!(
        "# Pipeline {}, layout {name}, by `windlass pipeline render`.",
        pipeline.name
    ))?;
    for object in objects {
        print_line(format_args!("---\n{}", serde_saphyr::to_string(&object)?.trim_end()))?;
    }
    Ok(())
}

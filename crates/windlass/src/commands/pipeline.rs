//! `windlass pipeline`: stages on the accelerators of a cluster.

mod boards;
mod fleet;
mod measure;
mod plan;
mod render;
pub(crate) mod report;
mod table;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use windlass_pipeline::{Fleet, Pipeline};

use crate::{
    cli::{PipelineCommand, PipelineSchemaArgs},
    exit::Misuse,
    runtime::block_on,
    screen::line,
};

pub(crate) fn run(command: PipelineCommand) -> Result<()> {
    match command {
        PipelineCommand::Plan(args) => block_on(plan::run(args)),
        PipelineCommand::Render(args) => block_on(render::run(args)),
        PipelineCommand::Measure(args) => block_on(measure::run(args)),
        PipelineCommand::Boards(args) => boards::run(&args),
        PipelineCommand::Schema(args) => schema(&args),
    }
}

/// Reads a pipeline's file.
fn pipeline(path: &Path) -> Result<Pipeline> {
    let read = || Ok(Pipeline::parse(path, &text(path)?)?);
    read().map_err(|error| Misuse(error).into())
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn schema(args: &PipelineSchemaArgs) -> Result<()> {
    let schema = if args.boards { Fleet::schema() } else { windlass_pipeline::schema() };
    Ok(line(serde_json::to_string_pretty(&schema)?)?)
}

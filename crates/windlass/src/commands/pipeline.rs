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
use windlass_config::InvalidConfig;
use windlass_pipeline::{Fleet, Pipeline};

use crate::{
    cli::{PipelineCommand, PipelineSchemaArgs},
    exit::UsageError,
    runtime::block_on,
    screen::print_line,
};

/// Parser of a file's text; the path is for messages.
type Parser<T> = fn(&Path, &str) -> Result<T, InvalidConfig>;

pub(crate) fn run(command: PipelineCommand) -> Result<()> {
    match command {
        PipelineCommand::Plan(args) => block_on(plan::run(args)),
        PipelineCommand::Render(args) => block_on(render::run(args)),
        PipelineCommand::Measure(args) => block_on(measure::run(args)),
        PipelineCommand::Boards(args) => boards::run(&args),
        PipelineCommand::Schema(args) => schema(&args),
    }
}

/// Reads a pipeline file.
fn pipeline(path: &Path) -> Result<Pipeline> {
    read(path, Pipeline::parse)
}

/// Reads a file that the command line names.
fn read<T>(path: &Path, parser: Parser<T>) -> Result<T> {
    parse(path, &text(path)?, parser)
}

fn text(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path);
    Ok(text.with_context(|| format!("cannot read {}", path.display())).map_err(UsageError)?)
}

fn parse<T>(path: &Path, text: &str, parser: Parser<T>) -> Result<T> {
    Ok(parser(path, text).map_err(|mistakes| UsageError(mistakes.into()))?)
}

fn schema(args: &PipelineSchemaArgs) -> Result<()> {
    let schema = if args.boards { Fleet::schema() } else { windlass_pipeline::schema() };
    Ok(print_line(serde_json::to_string_pretty(&schema)?)?)
}

//! Parser for a recorded cluster and its pods: CSV tables of Alibaba's 2023 trace, in the form of FGD's simulator.
//!
//! Nodes have the columns `cpu_milli`, `memory_mib`, `gpu` and `model`. Pods have `cpu_milli`, `memory_mib`, `num_gpu`,
//! `gpu_milli` and optionally `gpu_spec`, a list of models separated by `|`. Other columns are ignored.

use crate::{
    gpu::{Gpu, ModelSet, WHOLE_MILLI},
    node::{Node, ResourceUsage},
    request::{Gpus, Request},
    view::{Catalog, CatalogFull, ClusterView},
};

/// Maximum number of pods on a node, as in the experiment of the FGD paper.
const PODS_PER_NODE: u32 = 1001;

/// Reason why a table cannot be parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A column is missing from the first line.
    #[error("column {0} is missing")]
    Column(&'static str),
    /// A cell has an invalid value.
    #[error("line {line}: {column} is {text:?}, not {expected}")]
    Cell {
        /// Line number, from one.
        line: usize,
        /// The column's name.
        column: &'static str,
        /// The cell.
        text: String,
        /// The expected value.
        expected: &'static str,
    },
    /// Too many models.
    #[error("line {line}: {full}")]
    TooManyModels {
        /// Line number, from one.
        line: usize,
        /// The error, with the name of the model.
        full: CatalogFull,
    },
}

/// A table whose first line names its columns.
struct Table<'a> {
    names: Vec<&'a str>,
    lines: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    fn parse(text: &'a str) -> Self {
        let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let cells = |line: &'a str| line.split(',').map(str::trim).collect();
        let names = lines.next().map(|(line, _)| cells(line)).unwrap_or_default();
        Self { names, lines: lines.map(|(line, number)| (number, cells(line))).collect() }
    }

    fn column(&self, name: &'static str) -> Result<usize, TraceError> {
        self.names.iter().position(|it| *it == name).ok_or(TraceError::Column(name))
    }
}

fn number(
    line: usize,
    cells: &[&str],
    index: usize,
    column: &'static str,
) -> Result<u32, TraceError> {
    let text = cells.get(index).copied().unwrap_or_default();
    text.parse().map_err(|_| TraceError::Cell {
        line,
        column,
        text: text.to_owned(),
        expected: "a whole number",
    })
}

/// Parses a number of GPUs, up to 64.
fn gpu_count(
    line: usize,
    cells: &[&str],
    index: usize,
    column: &'static str,
) -> Result<u8, TraceError> {
    if let Ok(count @ ..=64) = u8::try_from(number(line, cells, index, column)?) {
        return Ok(count);
    }
    let (text, expected) = (cells[index].to_owned(), "a number up to 64");
    Err(TraceError::Cell { line, column, text, expected })
}

/// Parses a table of nodes.
pub fn nodes(text: &str) -> Result<ClusterView, TraceError> {
    let table = Table::parse(text);
    let (cpu, memory) = (table.column("cpu_milli")?, table.column("memory_mib")?);
    let (gpus, model) = (table.column("gpu")?, table.column("model")?);
    let mut catalog = Catalog::default();
    let mut nodes = Vec::new();
    for (line, cells) in &table.lines {
        let count = gpu_count(*line, cells, gpus, "gpu")?;
        let name = cells.get(model).copied().unwrap_or_default();
        let model = if count > 0 {
            Some(
                catalog
                    .intern_model(name)
                    .map_err(|full| TraceError::TooManyModels { line: *line, full })?,
            )
        } else {
            None
        };
        nodes.push(Node {
            cpu_milli: ResourceUsage::free(number(*line, cells, cpu, "cpu_milli")?),
            memory_mib: ResourceUsage::free(number(*line, cells, memory, "memory_mib")?),
            pods: ResourceUsage::free(PODS_PER_NODE),
            gpus: model.map_or_else(Vec::new, |model| vec![Gpu::free(model, 0); count.into()]),
        });
    }
    Ok(ClusterView::new(catalog, nodes))
}

/// Parses a table of pods. A pod's accepted products that are not in the catalog are ignored.
pub fn pods(text: &str, catalog: &Catalog) -> Result<Vec<Request>, TraceError> {
    let table = Table::parse(text);
    let (cpu, memory) = (table.column("cpu_milli")?, table.column("memory_mib")?);
    let (count, milli) = (table.column("num_gpu")?, table.column("gpu_milli")?);
    let models = table.column("gpu_spec").ok();
    let mut pods = Vec::new();
    for (line, cells) in &table.lines {
        let count = gpu_count(*line, cells, count, "num_gpu")?;
        let milli = number(*line, cells, milli, "gpu_milli")?;
        let spec = models.and_then(|index| cells.get(index)).copied().unwrap_or_default();
        pods.push(Request {
            cpu_milli: number(*line, cells, cpu, "cpu_milli")?,
            memory_mib: number(*line, cells, memory, "memory_mib")?,
            gpus: gpus(count, milli),
            models: if spec.is_empty() { ModelSet::ANY } else { models_of(spec, catalog) },
        });
    }
    Ok(pods)
}

fn gpus(count: u8, gpu_milli: u32) -> Gpus {
    match (count, u16::try_from(gpu_milli).unwrap_or(WHOLE_MILLI)) {
        (0, _) => Gpus::None,
        (1, gpu_milli @ 1..WHOLE_MILLI) => Gpus::share(gpu_milli, 0),
        (count, _) => Gpus::Whole(count),
    }
}

/// The named products that are in the catalog.
fn models_of(names: &str, catalog: &Catalog) -> ModelSet {
    let models = names.split('|').filter_map(|name| catalog.find_model(name.trim()));
    models.fold(ModelSet::NONE, ModelSet::with)
}

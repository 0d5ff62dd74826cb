//! Tests of the pipeline file, the prediction and the plan.

mod file;
mod manifests;
mod plan;

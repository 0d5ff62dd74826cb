//! The Job that puts load on a pipeline in the cluster: `windlass pipeline measure` in a pod of the stages' namespace,
//! where their Services have names.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use windlass_pipeline::{Pipeline, manifests::labels, pipeline::Stage};

use crate::{cli::MeasureArgs, exit::Misuse, measurement::figures::MeasuredFigures};

/// The output of the Job.
#[derive(Debug, Deserialize)]
struct JobReport {
    layouts: Vec<MeasuredFigures>,
}

/// Time besides the two runs, after which Kubernetes stops the Job: an image to pull, connections, the last items.
const LIMIT: Duration = Duration::from_secs(420);
/// A finished Job that nobody deletes goes by itself.
const KEPT_SECONDS: u64 = 600;
/// The pipeline's file in the pod: the value of an annotation, so that the Job is the only object.
const FILE_ANNOTATION: &str = "windlass.dev/pipeline";
/// Fields of a stage's pod that a pod beside it needs as well, to be admitted, to pull the image, and to find Services.
const SHARED_FIELDS: [&str; 5] =
    ["dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "tolerations"];

/// The manifest.
pub(super) fn manifest(pipeline: &Pipeline, text: &str, args: &MeasureArgs) -> Result<Value> {
    let stage = pipeline.stages.iter().find(|stage| runs_windlass(stage));
    let Some(image) = args.image.as_ref().or(stage.map(|stage| &stage.image)) else {
        let problem = anyhow!(
            "the load comes from a pod, and no stage's command is windlass: name an image with it, --image IMAGE"
        );
        return Err(Misuse(problem).into());
    };
    let stage = stage.unwrap_or(&pipeline.stages[0]);
    let mut pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "containers": [container(image, stage, args.lasts)],
        "volumes": [{ "name": "pipeline", "downwardAPI": { "items": [{
            "path": "pipeline.yaml",
            "fieldRef": { "fieldPath": format!("metadata.annotations['{FILE_ANNOTATION}']") },
        }] } }],
    });
    for field in SHARED_FIELDS {
        if let Some(value) = stage.pod.get(field) {
            pod[field] = value.clone();
        }
    }
    let labels = labels(pipeline);
    Ok(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        // Another comparison, or another person, may have a Job of any given name.
        "metadata": { "generateName": format!("{}-measure-", pipeline.name), "labels": labels },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": (2 * args.lasts + LIMIT).as_secs(),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": { "labels": labels, "annotations": { FILE_ANNOTATION: text } },
                "spec": pod,
            },
        },
    }))
}

fn runs_windlass(stage: &Stage) -> bool {
    let program = stage.command.first().map(String::as_str).unwrap_or_default();
    program == "windlass" || program.ends_with("/windlass")
}

/// The container, with the restricted profile of Pod Security.
fn container(image: &str, stage: &Stage, lasts: Duration) -> Value {
    let mut container = json!({
        "name": "measure",
        "image": image,
        "command": ["windlass", "pipeline", "measure", "/pipeline/pipeline.yaml", "--output", "json",
            "--for", format!("{}ms", lasts.as_millis())],
        "volumeMounts": [{ "name": "pipeline", "mountPath": "/pipeline" }],
        // Quotas ask for requests, and the layout may have left little.
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "runAsNonRoot": true,
            // The user nobody.
            "runAsUser": 65534,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    if let Some(policy) = stage.container.get("imagePullPolicy") {
        container["imagePullPolicy"] = policy.clone();
    }
    container
}

/// The figures in the Job's log, after whatever it warned of.
pub(super) fn figures(log: &str) -> Result<MeasuredFigures> {
    let begins = |line: &&str| line.starts_with('{');
    let at = log.split_inclusive('\n').take_while(|line| !begins(line)).map(str::len).sum();
    let mut documents = serde_json::Deserializer::from_str(&log[at..]).into_iter::<JobReport>();
    match documents.next() {
        Some(Ok(report)) => report.layouts.into_iter().next().context("the Job measured nothing"),
        Some(Err(error)) => Err(error)
            .context("the image has another version of windlass, whose figures cannot be read"),
        None if log.trim().is_empty() => bail!("the Job ended without a word: look at its events"),
        None => bail!("the Job says: {}", log.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_job_without_figures_are_told() {
        let told = |log: &str| windlass_host::causes(&*figures(log).expect_err("no figures"));
        assert!(told("windlass: no stage serves\n").ends_with("windlass: no stage serves"));
        assert!(told(" ").contains("without a word"));
        assert!(told("{\"layouts\": [{}]}").contains("another version"));
        assert!(told("{\"layouts\": []}").contains("measured nothing"));
    }
}

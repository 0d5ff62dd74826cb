//! Job that measures a pipeline from inside the cluster: it runs `windlass pipeline measure` in the stages' namespace,
//! where the names of their Services resolve.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use windlass_pipeline::{Pipeline, manifests::labels, pipeline::Stage};

use crate::{cli::MeasureArgs, exit::UsageError, measurement::figures::MeasuredFigures};

/// The output of the Job.
#[derive(Debug, Deserialize)]
struct JobReport {
    layouts: Vec<MeasuredFigures>,
}

/// Time that the Job may take besides its two runs: for the image, for connections, for the last items. Kubernetes
/// stops a Job that takes longer.
const JOB_LIMIT: Duration = Duration::from_secs(420);
/// Seconds after which Kubernetes deletes a finished Job.
const TTL_SECONDS: u64 = 600;
/// Annotation with the text of the pipeline file, which the pod mounts. The Job needs no `ConfigMap`.
const FILE_ANNOTATION: &str = "windlass.dev/pipeline";
/// Fields that the Job's pod copies from a stage's pod: to tolerate taints, to pull the image, to resolve Services.
const SHARED_FIELDS: [&str; 5] =
    ["dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "tolerations"];

/// Builds the manifest of the Job.
pub(super) fn manifest(pipeline: &Pipeline, text: &str, args: &MeasureArgs) -> Result<Value> {
    let stage = pipeline.stages.iter().find(|stage| runs_windlass(stage));
    let Some(image) = args.image.as_ref().or(stage.map(|stage| &stage.image)) else {
        let problem = anyhow!(
            "no stage's command is windlass, so no known image can send items: give one with windlass, --image IMAGE"
        );
        return Err(UsageError(problem).into());
    };
    let stage = stage.unwrap_or(&pipeline.stages[0]);
    let mut pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "containers": [container(image, stage, args.duration)],
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
        // A fixed name could belong to the Job of another comparison.
        "metadata": { "generateName": format!("{}-measure-", pipeline.name), "labels": labels },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": (2 * args.duration + JOB_LIMIT).as_secs(),
            "ttlSecondsAfterFinished": TTL_SECONDS,
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

/// Container that satisfies the restricted Pod Security Standard.
fn container(image: &str, stage: &Stage, duration: Duration) -> Value {
    let mut container = json!({
        "name": "measure",
        "image": image,
        "command": ["windlass", "pipeline", "measure", "/pipeline/pipeline.yaml", "--output", "json",
            "--for", format!("{}ms", duration.as_millis())],
        "volumeMounts": [{ "name": "pipeline", "mountPath": "/pipeline" }],
        // Quotas demand requests, which are small: the layout may use almost all of a node.
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "runAsNonRoot": true,
            // UID of the user `nobody`.
            "runAsUser": 65534,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    if let Some(policy) = stage.container.get("imagePullPolicy") {
        container["imagePullPolicy"] = policy.clone();
    }
    container
}

/// Parses the figures in the Job's log, which follow its warnings.
pub(super) fn parse_figures(log: &str) -> Result<MeasuredFigures> {
    let is_json_start = |line: &&str| line.starts_with('{');
    let offset =
        log.split_inclusive('\n').take_while(|line| !is_json_start(line)).map(str::len).sum();
    let mut documents = serde_json::Deserializer::from_str(&log[offset..]).into_iter::<JobReport>();
    match documents.next() {
        Some(Ok(report)) => report.layouts.into_iter().next().context("the Job measured nothing"),
        Some(Err(error)) => Err(error)
            .context("the image has another version of windlass, whose figures cannot be read"),
        None if log.trim().is_empty() => bail!("the Job ended without output: look at its events"),
        None => bail!("the output of the Job has no figures: {}", log.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_figures_is_reported_with_its_output() {
        let error_text =
            |log: &str| windlass_host::causes(&*parse_figures(log).expect_err("no figures"));
        assert!(error_text("windlass: no stage serves\n").ends_with("windlass: no stage serves"));
        assert!(error_text(" ").contains("without output"));
        assert!(error_text("{\"layouts\": [{}]}").contains("another version"));
        assert!(error_text("{\"layouts\": []}").contains("measured nothing"));
    }
}

//! Pods that log the GPUs that they see, ten times a second. Two pods must not see one GPU at the same time.
//!
//! The log is a file of the host, so that it has the last lines of a deleted pod.

use std::{collections::BTreeMap, fs, path::PathBuf};

use super::objects::template;
use crate::cluster::{node::Node, pods::clean_up};

/// Log folder and label of the pods of one test. Drop deletes the pods.
pub(super) struct Logs {
    folder: PathBuf,
    /// Label of the pods of this test.
    pub(super) label: String,
}

/// API through which a pod gets its GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllocationApi {
    Plugin,
    Claim,
}

/// Pod that has a number of GPUs, for a number of tenths of a second.
#[derive(Clone, Debug)]
pub(super) struct ShortPod {
    pub(super) name: String,
    pub(super) api: AllocationApi,
    pub(super) gpus: usize,
    pub(super) duration_tenths: u64,
}

/// Time in which a pod saw a GPU, in seconds since the start of the machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) gpu: String,
    from: f64,
    to: f64,
    pub(super) pod: String,
}

// === impl Logs ===

impl Logs {
    /// Creates the log folder in the node's folder, for the test of this name.
    pub(super) fn on(node: &Node, test: &str) -> Self {
        let folder = PathBuf::from(node.path("seen"));
        fs::create_dir(&folder).expect("a folder");
        Self { folder, label: format!("windlass-e2e={test}") }
    }

    pub(super) fn pod(&self, pod: &ShortPod) -> String {
        let ShortPod { name, api, gpus, duration_tenths: tenths } = pod;
        let (claims, resources) = match api {
            AllocationApi::Plugin => (String::new(), format!("limits: {{nvidia.com/gpu: {gpus}}}")),
            AllocationApi::Claim => (
                format!(
                    "resourceClaims: [{{name: gpus, resourceClaimTemplateName: {}}}]",
                    template(*gpus)
                ),
                "claims: [{name: gpus}]".to_owned(),
            ),
        };
        let (key, test) = self.label.split_once('=').expect("a label");
        // Built-ins of the shell, except for `sleep`: many pods must cost little.
        let script = format!(
            "set -- /dev/nvidia[0-9]*; i=0; while [ $i -le {tenths} ]; do \
             read now rest </proc/uptime; echo $now $* >>/seen/{name}; sleep 0.1; i=$((i+1)); done"
        );
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{{key}: {test}}}}}\nspec:\n  \
             restartPolicy: Never\n  automountServiceAccountToken: false\n  \
             terminationGracePeriodSeconds: 0\n  {claims}\n  \
             volumes: [{{name: seen, hostPath: {{path: {folder}, type: Directory}}}}]\n  \
             containers:\n  - name: main\n    image: docker.io/local/app:1\n    \
             imagePullPolicy: Never\n    command: [sh, -c, '{script}']\n    \
             resources: {{{resources}}}\n    volumeMounts: [{{name: seen, mountPath: /seen}}]\n",
            folder = self.folder.display()
        )
    }

    /// Observations of the pods.
    pub(super) fn spans(&self) -> Vec<Span> {
        let files = fs::read_dir(&self.folder).expect("a folder").flatten();
        let spans = files.flat_map(|file| {
            let text = fs::read_to_string(file.path()).expect("a log");
            spans(&file.file_name().to_string_lossy(), &text)
        });
        spans.collect()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        clean_up(&["delete", "pod", "--now", "--ignore-not-found", "-l", &self.label]);
    }
}

fn spans(pod: &str, text: &str) -> Vec<Span> {
    let mut spans = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(now) = words.next().and_then(|word| word.parse().ok()) else { continue };
        for gpu in words.filter(|word| !word.contains('*')) {
            let (gpu, pod) = (gpu.to_owned(), pod.to_owned());
            let new_span = Span { gpu: gpu.clone(), from: now, to: now, pod };
            spans.entry(gpu).or_insert(new_span).to = now;
        }
    }
    spans.into_values().collect()
}

/// Pairs of pods that saw one GPU at the same time.
pub(super) fn overlapping_pairs(spans: &[Span]) -> Vec<(Span, Span)> {
    let pairs = spans.iter().enumerate().flat_map(|(index, first)| {
        let others = spans[index + 1..].iter();
        others
            .filter(move |second| overlap(first, second))
            .map(move |second| (first.clone(), second.clone()))
    });
    pairs.collect()
}

fn overlap(first: &Span, second: &Span) -> bool {
    first.gpu == second.gpu && first.from <= second.to && second.from <= first.to
}

#[test]
fn two_pods_that_saw_one_gpu_at_the_same_time_are_found() {
    let first_spans =
        spans("first", "1.0 /dev/nvidia0 /dev/nvidia1\n2.5 /dev/nvidia0 /dev/nvidia1\n");
    let later_spans = spans("later", "2.4 /dev/nvidia1\n3.0 /dev/nvidia1\n");
    let after_spans = spans("after", "2.6 /dev/nvidia0\n2.7 /dev/nvidia[0-9]*\n");
    let pairs = overlapping_pairs(&[first_spans, later_spans.clone(), after_spans].concat());
    let names: Vec<_> =
        pairs.iter().map(|(span, other_span)| (&*span.pod, &*other_span.pod)).collect();
    assert_eq!(names, [("first", "later")]);
    assert_eq!(pairs[0].1, later_spans[0]);
}

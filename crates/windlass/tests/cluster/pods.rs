//! Pods and other objects on the cluster, deleted at the end of a test.

use std::{
    env,
    process::{Command, Stdio},
};

use crate::cluster::{KUBECONFIG, NODE_STATUS_LIMIT, eventually};

/// Objects of a test other than pods; deleted when dropped.
pub(crate) struct Manifests(String);

/// Names of a test's pods; deleted when dropped.
pub(crate) struct Pods(Vec<String>);

pub(crate) fn kubectl(arguments: &[&str]) -> String {
    try_kubectl(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Runs kubectl. Returns its standard output, or its errors if it fails.
pub(crate) fn try_kubectl(arguments: &[&str]) -> Result<String, String> {
    let output = command().args(arguments).output().expect("kubectl is on the PATH");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Runs a command of kubectl that deletes objects of a test. After a failure of the test, a failed command is only
/// printed.
#[expect(clippy::print_stderr, reason = "the test has panicked already")]
pub(crate) fn clean_up(arguments: &[&str]) {
    let Err(error) = try_kubectl(arguments) else { return };
    // A second panic would abort the remaining tests.
    assert!(std::thread::panicking(), "{arguments:?}: {error}");
    eprintln!("{arguments:?}: {error}");
}

fn command() -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(env::var_os(KUBECONFIG).expect("checked"));
    command
}

/// Creates objects without deleting them at the end of the test.
pub(crate) fn apply(manifest: &str) {
    let mut child = command()
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("kubectl is on the PATH");
    let mut input = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, manifest.as_bytes()).expect("written");
    drop(input);
    assert!(child.wait().expect("a child").success());
}

/// Number of a resource in a field of the node's status, such as `capacity`.
pub(crate) fn node_status(field: &str, resource: &str) -> String {
    let resource = resource.replace('.', "\\.");
    let path = format!("jsonpath={{.items[0].status.{field}.{resource}}}");
    kubectl(&["get", "nodes", "-o", &path])
}

// === impl Manifests ===

impl Manifests {
    pub(crate) fn apply(objects: &[String]) -> Self {
        // kubectl may read the whole text as JSON if it begins with a brace.
        let text = format!("---\n{}", objects.join("---\n"));
        apply(&text);
        Self(text)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), &self.0).expect("written");
        let path = file.path().display().to_string();
        clean_up(&["delete", "--now", "--ignore-not-found", "-f", &path]);
    }
}

// === impl Pods ===

impl Pods {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Output of a command in a pod's container; `None` if it fails. A command that could not start proves nothing.
    pub(crate) fn exec(name: &str, script: &str) -> Option<String> {
        match try_kubectl(&["exec", name, "--", "sh", "-c", script]) {
            Ok(output) => Some(output),
            Err(error) if error.contains("command terminated with exit code") => None,
            Err(error) => panic!("no command runs in {name}: {error}"),
        }
    }

    /// Creates a pod, and waits until its container runs.
    pub(crate) async fn run(&mut self, name: &str, resource: &str, count: usize) {
        self.create(name, resource, count);
        self.wait_for_running(name).await;
    }

    /// Waits until a pod's container runs.
    pub(crate) async fn wait_for_running(&self, name: &str) {
        let phase = async || kubectl(&["get", "pod", name, "-o", "jsonpath={.status.phase}"]);
        eventually(NODE_STATUS_LIMIT, "Running".to_owned(), phase).await;
    }

    /// Creates a pod from a manifest.
    pub(crate) fn apply(&mut self, name: &str, manifest: &str) {
        apply(manifest);
        self.0.push(name.to_owned());
    }

    /// Creates a pod whose container requests a resource.
    pub(crate) fn create(&mut self, name: &str, resource: &str, count: usize) {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
             automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
             containers:\n  - name: main\n    image: docker.io/local/app:1\n    \
             imagePullPolicy: Never\n    resources: {{limits: {{{resource}: {count}}}}}\n"
        );
        self.apply(name, &manifest);
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) fn delete(&mut self, name: &str) {
        kubectl(&["delete", "pod", "--now", name]);
        self.0.retain(|other| other != name);
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let names = self.0.iter().map(String::as_str);
        let arguments = ["delete", "pod", "--now", "--ignore-not-found"].into_iter().chain(names);
        clean_up(&arguments.collect::<Vec<_>>());
    }
}

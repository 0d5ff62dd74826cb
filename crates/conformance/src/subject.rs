//! Program under test: its command, the path where it finds the kubelet, its time limits.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{self, Path, PathBuf},
    time::Duration,
};

use tokio::process::Command;

/// Program under test, and its surroundings in a case.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Program and arguments, with placeholders. `{kubelet}` is the kubelet's folder. `{scratch}` is a folder for the
    /// program during a case. `{kubeconfig}` is a kubeconfig file of an API server, and `{node}` the name of the node
    /// there.
    pub command: Vec<String>,
    /// Path at which the program finds the kubelet.
    pub kubelet_path: KubeletPath,
    /// Time limits.
    pub limits: TimeLimits,
    /// Folders of CDI specs, with placeholders as in the command.
    pub cdi_dirs: Vec<String>,
    /// Hooks around the program.
    pub hooks: Hooks,
    /// CEL expression for the driver's devices that the cases claim; all devices by default.
    pub devices: Option<String>,
}

/// Path at which a program finds the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletPath {
    /// Path from the command line: `{kubelet}` in an argument.
    FromCommand,
    /// `/var/lib/kubelet`, in a private mount namespace, created by `unshare` of util-linux. Without root this needs
    /// user namespaces.
    Fixed,
}

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// From the start to the first list of devices.
    pub start: Duration,
    /// From an event to the program's reaction, such as a new registration or a reported fault.
    pub react: Duration,
    /// From a refusal or the loss of the kubelet to the program's next success. Kubernetes specifies no limit, but a
    /// node without devices for more than a minute is an incident for operators.
    pub recover: Duration,
    /// From a change of slices to the moment when all devices are published again. Kubernetes' helper for drivers
    /// syncs 30 s after a change. The helper trusts its cached slices for 60 s (`DefaultSyncDelay` and
    /// `DefaultMutationCacheTTL` of `k8s.io/dynamic-resource-allocation/resourceslice`).
    pub republish: Duration,
    /// From a call to its response, on a busy machine. The kubelet itself waits without a limit.
    pub answer: Duration,
    /// From SIGTERM to the exit.
    pub stop: Duration,
}

/// Commands for `sh -c`, with placeholders as in [`Subject::command`].
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// Prepares the program's surroundings, once for each case, before the first start.
    pub setup: Option<String>,
    /// Makes one device fail.
    pub fail: Option<String>,
    /// Repairs the device.
    pub heal: Option<String>,
}

/// Reason why a command cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The file does not exist.
    #[error("there is no program {0}")]
    Missing(String),
    /// No folder of `PATH` has the file.
    #[error("there is no program {0} in a folder of PATH")]
    NotInPath(String),
    /// The file is not executable.
    #[error("{0} is not a program: it is a folder, or not executable")]
    NotExecutable(String),
}

/// Values of the placeholders.
#[derive(Clone, Debug)]
pub(crate) struct Placeholders {
    pub(crate) kubelet: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

/// Name of the node.
pub(crate) const NODE_NAME: &str = "node";

/// Script that mounts the folder `$1` at the kubelet's path, and executes the other arguments. If the host lacks that
/// path, the script mounts an empty tmpfs at `/var/lib` for it.
const MOUNT_SCRIPT: &str = r#"
folder=$1; shift
[ -d /var/lib/kubelet ] ||
  { mount -t tmpfs windlass /var/lib && mkdir /var/lib/kubelet; } || exit 125
mount --bind "$folder" /var/lib/kubelet || exit 125
exec "$@"
"#;

// === impl Subject ===

impl Subject {
    /// Creates a subject. The program finds the kubelet by `{kubelet}` in its command, or else at the fixed path.
    pub fn new(mut command: Vec<String>) -> Self {
        // A relative path such as `./my-plugin` would resolve in the folder of the case.
        if let Some(program) = command.first_mut()
            && program.contains('/')
            && !program.contains('{')
            && let Ok(absolute) = path::absolute(&*program)
            && let Some(absolute) = absolute.to_str()
        {
            absolute.clone_into(program);
        }
        let has_kubelet = command.iter().any(|word| word.contains("{kubelet}"));
        let kubelet_path = if has_kubelet { KubeletPath::FromCommand } else { KubeletPath::Fixed };
        // Default folders of container runtimes (Container Device Interface 1.0).
        let cdi_dirs = ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).into();
        let (limits, hooks) = (TimeLimits::default(), Hooks::default());
        Self { command, kubelet_path, limits, cdi_dirs, hooks, devices: None }
    }

    /// True if its command has the placeholder of a kubeconfig.
    pub(crate) fn reaches_an_api_server(&self) -> bool {
        self.command.iter().any(|word| word.contains("{kubeconfig}"))
    }

    /// Checks that the program exists and is executable, unless its path has a placeholder.
    pub fn check(&self) -> Result<(), CommandError> {
        let Some(program) = self.command.first().filter(|program| !program.contains('{')) else {
            return Ok(());
        };
        let candidates: Vec<PathBuf> = if program.contains('/') {
            vec![program.into()]
        } else {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).map(|folder| folder.join(program)).collect()
        };
        if candidates.iter().any(|path| is_program(path)) {
            return Ok(());
        }
        Err(match candidates.iter().any(|path| path.exists()) {
            true => CommandError::NotExecutable(program.clone()),
            false if program.contains('/') => CommandError::Missing(program.clone()),
            false => CommandError::NotInPath(program.clone()),
        })
    }

    /// Program and arguments with filled placeholders, preceded by the mount command if the path is fixed.
    pub(crate) fn argv(&self, placeholders: &Placeholders) -> Vec<OsString> {
        let own_words = self.command.iter().map(|word| placeholders.fill(word).into());
        match self.kubelet_path {
            KubeletPath::FromCommand => own_words.collect(),
            KubeletPath::Fixed => {
                let user_options: &[&str] =
                    if rustix::process::geteuid().is_root() { &[] } else { &["--map-root-user"] };
                let words = ["unshare", "--mount", "--propagation", "private"];
                let words =
                    words.iter().chain(user_options).chain(&["sh", "-c", MOUNT_SCRIPT, "sh"]);
                words
                    .map(OsString::from)
                    .chain([placeholders.kubelet.clone().into()])
                    .chain(own_words)
                    .collect()
            }
        }
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Prefixes of environment variables that could point a program to another cluster or node, or change its role. The
/// list covers client-go, pods, Kubernetes' commands, and Windlass itself.
const FOREIGN_PREFIXES: [&str; 3] = ["KUBE", "NODE_NAME", "WINDLASS_"];

// === impl Placeholders ===

impl Placeholders {
    /// Sets the environment of a case: this process' environment without foreign variables, plus `KUBECONFIG` and
    /// `NODE_NAME`.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if FOREIGN_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.env("KUBECONFIG", &self.kubeconfig).env("NODE_NAME", NODE_NAME);
    }

    /// Fills the placeholders of a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        let Self { kubelet, scratch, kubeconfig } = self;
        let paths = [("{kubelet}", kubelet), ("{scratch}", scratch), ("{kubeconfig}", kubeconfig)];
        let text = paths.iter().fold(text.to_owned(), |text, (name, path)| {
            text.replace(name, &path.display().to_string())
        });
        text.replace("{node}", NODE_NAME)
    }
}

// === impl TimeLimits ===

impl Default for TimeLimits {
    /// Limits that follow the kubelet, which dials a plugin for 10 s.
    fn default() -> Self {
        Self {
            start: Duration::from_secs(20),
            react: Duration::from_secs(10),
            recover: Duration::from_secs(60),
            republish: Duration::from_secs(95),
            answer: Duration::from_secs(5),
            stop: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placeholders() -> Placeholders {
        Placeholders { kubelet: "/k".into(), scratch: "/s".into(), kubeconfig: "/c".into() }
    }

    #[test]
    fn a_command_with_the_folder_starts_unchanged() {
        let words = ["driver", "--dir={kubelet}", "--at={kubeconfig},{node}"].map(str::to_owned);
        let words = Subject::new(words.into()).argv(&placeholders());
        assert_eq!(words, ["driver", "--dir=/k", "--at=/c,node"]);
    }

    #[test]
    fn a_missing_program_is_found_before_the_start() {
        let check = |program: &str| Subject::new(vec![program.to_owned()]).check();
        assert_eq!(check("/nope"), Err(CommandError::Missing("/nope".to_owned())));
        assert_eq!(check("no-such-word"), Err(CommandError::NotInPath("no-such-word".to_owned())));
        assert_eq!(check("/etc"), Err(CommandError::NotExecutable("/etc".to_owned())));
        assert_eq!(check("/etc/passwd"), Err(CommandError::NotExecutable("/etc/passwd".into())));
        assert_eq!(check("sh"), Ok(()));
        assert_eq!(check("{scratch}/made-by-setup"), Ok(()));
    }

    #[test]
    fn a_relative_program_path_starts_at_the_current_folder() {
        let subject = Subject::new(vec!["./plugin".into(), "./argument".into()]);
        let current_dir = env::current_dir().expect("the test has a current folder");
        assert_eq!(subject.command[0], current_dir.join("plugin").display().to_string());
        assert_eq!(subject.command[1], "./argument");
    }

    #[test]
    fn a_command_without_the_folder_gets_it_mounted_at_the_fixed_path() {
        let subject = Subject::new(vec!["plugin".into(), "{scratch}/x".into()]);
        let words = subject.argv(&placeholders());
        assert_eq!(words[0], "unshare");
        assert_eq!(words[words.len() - 3..], ["/k", "plugin", "/s/x"]);
    }
}

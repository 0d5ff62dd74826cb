//! The program that is looked at: how it is started, where it finds the kubelet, how long it may take.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{self, Path, PathBuf},
    time::Duration,
};

use tokio::process::Command;

/// How the program is started for a case.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The program and its arguments. In each `{kubelet}` stands for the kubelet's folder, `{scratch}` for a
    /// folder that the program has to itself for the length of a case, `{kubeconfig}` for a file with which
    /// it reaches an API server, and `{node}` for the node's name there.
    pub command: Vec<String>,
    /// Where the program looks for the kubelet.
    pub place: Place,
    /// How long it may take.
    pub within: Within,
    /// Folders of CDI documents, with places as in the command.
    pub cdi_dirs: Vec<String>,
    /// What is done around it.
    pub hooks: Hooks,
    /// Which of a driver's devices the cases claim, as an expression in CEL; all of them otherwise.
    pub devices: Option<String>,
}

/// Where a program looks for the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where it is told: `{kubelet}` in an argument.
    Told,
    /// At `/var/lib/kubelet`, which the program finds in a mount namespace of its own, made by `unshare`
    /// of util-linux. Who is not root needs user namespaces.
    Fixed,
}

/// Limits of time.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// From its start to the first list of devices.
    pub start: Duration,
    /// From what happens to what the program does about it: registers again, tells of a fault.
    pub react: Duration,
    /// From what a plugin must try again, refused or without a kubelet, to its next success. Kubernetes names
    /// no limit; a node that has no devices for longer than a minute has an incident.
    pub recover: Duration,
    /// From what happens to slices to the moment when all devices are in some again. Kubernetes' helper for drivers
    /// looks 30 s after a change, at slices that it remembers for 60 s (`DefaultSyncDelay` and
    /// `DefaultMutationCacheTTL` of `k8s.io/dynamic-resource-allocation/resourceslice`).
    pub republish: Duration,
    /// For the answer to a call, on a machine that has other things to do: the kubelet waits without a limit.
    pub answer: Duration,
    /// From SIGTERM to its end.
    pub stop: Duration,
}

/// Commands for `sh -c`, with places as in [`Subject::command`].
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// Makes what the program needs, once for each case, before its first start.
    pub setup: Option<String>,
    /// Makes one device fail.
    pub fail: Option<String>,
    /// Makes it work again.
    pub heal: Option<String>,
}

/// Why a command cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unstartable {
    /// There is no such file.
    #[error("there is no program {0}")]
    Missing(String),
    /// No folder of `PATH` has it.
    #[error("there is no program {0} in a folder of PATH")]
    NotInPath(String),
    /// It is no program.
    #[error("{0} is no program: it is a folder, or nobody may execute it")]
    NotExecutable(String),
}

/// What stands in the places of a command.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) kubelet: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

/// What the node is called.
pub(crate) const NODE: &str = "node";

/// Puts the folder `$1` where the program `$@` behind it looks for the kubelet. A host that has no such folder is
/// left without: the program has all of `/var/lib` empty but for it.
const MOUNT: &str = r#"
folder=$1; shift
[ -d /var/lib/kubelet ] ||
  { mount -t tmpfs windlass /var/lib && mkdir /var/lib/kubelet; } || exit 125
mount --bind "$folder" /var/lib/kubelet || exit 125
exec "$@"
"#;

// === impl Subject ===

impl Subject {
    /// A program that is told the kubelet's folder where its command has `{kubelet}`, and finds it where it
    /// always is otherwise.
    pub fn new(mut command: Vec<String>) -> Self {
        // A case has a folder of its own, in which `./my-plugin` would be another program.
        if let Some(program) = command.first_mut()
            && program.contains('/')
            && !program.contains('{')
            && let Ok(whole) = path::absolute(&*program)
            && let Some(whole) = whole.to_str()
        {
            whole.clone_into(program);
        }
        let is_told = command.iter().any(|word| word.contains("{kubelet}"));
        let place = if is_told { Place::Told } else { Place::Fixed };
        // Where container runtimes look (Container Device Interface 1.0).
        let cdi_dirs = ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).into();
        let (within, hooks) = (Within::default(), Hooks::default());
        Self { command, place, within, cdi_dirs, hooks, devices: None }
    }

    /// Whether it is told of an API server.
    pub(crate) fn reaches_an_api_server(&self) -> bool {
        self.command.iter().any(|word| word.contains("{kubeconfig}"))
    }

    /// Finds out whether there is such a program, unless its path has a place that is filled for each case.
    pub fn check(&self) -> Result<(), Unstartable> {
        let Some(program) = self.command.first().filter(|it| !it.contains('{')) else {
            return Ok(());
        };
        let candidates: Vec<PathBuf> = if program.contains('/') {
            vec![program.into()]
        } else {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).map(|folder| folder.join(program)).collect()
        };
        if candidates.iter().any(|it| is_program(it)) {
            return Ok(());
        }
        Err(match candidates.iter().any(|it| it.exists()) {
            true => Unstartable::NotExecutable(program.clone()),
            false if program.contains('/') => Unstartable::Missing(program.clone()),
            false => Unstartable::NotInPath(program.clone()),
        })
    }

    /// The words of the command that starts it.
    pub(crate) fn words(&self, places: &Places) -> Vec<OsString> {
        let own = self.command.iter().map(|word| places.fill(word).into());
        match self.place {
            Place::Told => own.collect(),
            Place::Fixed => {
                let user: &[&str] =
                    if rustix::process::geteuid().is_root() { &[] } else { &["--map-root-user"] };
                let words = ["unshare", "--mount", "--propagation", "private"];
                let words = words.iter().chain(user).chain(&["sh", "-c", MOUNT, "sh"]);
                words
                    .map(OsString::from)
                    .chain([places.kubelet.clone().into()])
                    .chain(own)
                    .collect()
            }
        }
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The beginnings of variables that would lead a program to another cluster or node, or set it up as another
/// program: client-go's, those of pods and of Kubernetes' commands, and Windlass's own.
const FOREIGN: [&str; 3] = ["KUBE", "NODE_NAME", "WINDLASS_"];

// === impl Places ===

impl Places {
    /// Gives a command the environment of a case: that of this program, but for what leads elsewhere.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if FOREIGN.iter().any(|beginning| text.starts_with(beginning)) {
                command.env_remove(&name);
            }
        }
        command.env("KUBECONFIG", &self.kubeconfig).env("NODE_NAME", NODE);
    }

    /// The text with what stands in its places.
    pub(crate) fn fill(&self, text: &str) -> String {
        let Self { kubelet, scratch, kubeconfig } = self;
        let paths = [("{kubelet}", kubelet), ("{scratch}", scratch), ("{kubeconfig}", kubeconfig)];
        let text = paths.iter().fold(text.to_owned(), |text, (place, path)| {
            text.replace(place, &path.display().to_string())
        });
        text.replace("{node}", NODE)
    }
}

// === impl Within ===

impl Default for Within {
    /// The kubelet dials a plugin for 10 s; nobody should wait longer for a plugin.
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

    fn places() -> Places {
        Places { kubelet: "/k".into(), scratch: "/s".into(), kubeconfig: "/c".into() }
    }

    #[test]
    fn a_program_that_is_told_the_folder_is_started_as_it_is() {
        let words = ["driver", "--dir={kubelet}", "--at={kubeconfig},{node}"].map(str::to_owned);
        let words = Subject::new(words.into()).words(&places());
        assert_eq!(words, ["driver", "--dir=/k", "--at=/c,node"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_named_before_anything_is_started() {
        let check = |program: &str| Subject::new(vec![program.to_owned()]).check();
        assert_eq!(check("/nope"), Err(Unstartable::Missing("/nope".to_owned())));
        assert_eq!(check("no-such-word"), Err(Unstartable::NotInPath("no-such-word".to_owned())));
        assert_eq!(check("/etc"), Err(Unstartable::NotExecutable("/etc".to_owned())));
        assert_eq!(check("/etc/passwd"), Err(Unstartable::NotExecutable("/etc/passwd".into())));
        assert_eq!(check("sh"), Ok(()));
        assert_eq!(check("{scratch}/made-by-setup"), Ok(()));
    }

    #[test]
    fn a_path_is_that_of_who_typed_it() {
        let subject = Subject::new(vec!["./plugin".into(), "./argument".into()]);
        let here = env::current_dir().expect("a folder");
        assert_eq!(subject.command[0], here.join("plugin").display().to_string());
        assert_eq!(subject.command[1], "./argument");
    }

    #[test]
    fn a_program_that_is_not_told_finds_the_folder_where_it_always_is() {
        let subject = Subject::new(vec!["plugin".into(), "{scratch}/x".into()]);
        let words = subject.words(&places());
        assert_eq!(words[0], "unshare");
        assert_eq!(words[words.len() - 3..], ["/k", "plugin", "/s/x"]);
    }
}

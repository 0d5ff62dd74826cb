//! The program that is looked at: how it is started, where it finds the kubelet, how long it may take.

use std::{ffi::OsString, path::Path, time::Duration};

/// How the program is started for a case.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The program and its arguments. In each `{kubelet}` stands for the kubelet's folder and `{scratch}`
    /// for a folder that the program has to itself for the length of a case.
    pub command: Vec<String>,
    /// Where the program looks for the kubelet.
    pub place: Place,
    /// How long it may take.
    pub within: Within,
    /// Folders of CDI documents, with `{kubelet}` and `{scratch}` as in the command.
    pub cdi_dirs: Vec<String>,
    /// What is done around it.
    pub hooks: Hooks,
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
    /// For the answer to a call, on a machine that has other things to do: the kubelet waits without a limit.
    pub answer: Duration,
    /// From SIGTERM to its end.
    pub stop: Duration,
}

/// Commands for `sh -c`, with `{kubelet}` and `{scratch}` as in [`Subject::command`].
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// Makes what the program needs, once for each case, before its first start.
    pub setup: Option<String>,
    /// Makes one device fail.
    pub fail: Option<String>,
    /// Makes it work again.
    pub heal: Option<String>,
}

/// Puts the folder `$1` where the program `$@` behind it looks for the kubelet. Who may not make the mount
/// point has all of `/var/lib` empty but for it.
const MOUNT: &str = r#"
folder=$1; shift
[ -d /var/lib/kubelet ] || mkdir -p /var/lib/kubelet 2>/dev/null ||
  { mount -t tmpfs windlass /var/lib && mkdir /var/lib/kubelet; } || exit 125
mount --bind "$folder" /var/lib/kubelet || exit 125
exec "$@"
"#;

// === impl Subject ===

impl Subject {
    /// A program that is told the kubelet's folder where its command has `{kubelet}`, and finds it where it
    /// always is otherwise.
    pub fn new(command: Vec<String>) -> Self {
        let is_told = command.iter().any(|word| word.contains("{kubelet}"));
        let place = if is_told { Place::Told } else { Place::Fixed };
        // Where container runtimes look (Container Device Interface 1.0).
        let cdi_dirs = ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).into();
        Self { command, place, within: Within::default(), cdi_dirs, hooks: Hooks::default() }
    }

    /// The words of the command that starts it.
    pub(crate) fn words(&self, kubelet: &Path, scratch: &Path) -> Vec<OsString> {
        let own = self.command.iter().map(|word| filled(word, kubelet, scratch).into());
        match self.place {
            Place::Told => own.collect(),
            Place::Fixed => {
                let user: &[&str] =
                    if rustix::process::geteuid().is_root() { &[] } else { &["--map-root-user"] };
                let words = ["unshare", "--mount", "--propagation", "private"];
                let words = words.iter().chain(user).chain(&["sh", "-c", MOUNT, "sh"]);
                words.map(OsString::from).chain([kubelet.into()]).chain(own).collect()
            }
        }
    }
}

/// The text with the folders in their places.
pub(crate) fn filled(text: &str, kubelet: &Path, scratch: &Path) -> String {
    let text = text.replace("{kubelet}", &kubelet.display().to_string());
    text.replace("{scratch}", &scratch.display().to_string())
}

// === impl Within ===

impl Default for Within {
    /// The kubelet dials a plugin for 10 s; nobody should wait longer for a plugin.
    fn default() -> Self {
        Self {
            start: Duration::from_secs(20),
            react: Duration::from_secs(10),
            recover: Duration::from_secs(60),
            answer: Duration::from_secs(5),
            stop: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_told_the_folder_is_started_as_it_is() {
        let subject = Subject::new(vec!["plugin".into(), "--dir={kubelet}".into()]);
        let words = subject.words(Path::new("/k"), Path::new("/s"));
        assert_eq!(words, ["plugin", "--dir=/k"]);
    }

    #[test]
    fn a_program_that_is_not_told_finds_the_folder_where_it_always_is() {
        let subject = Subject::new(vec!["plugin".into(), "{scratch}/x".into()]);
        let words = subject.words(Path::new("/k"), Path::new("/s"));
        assert_eq!(words[0], "unshare");
        assert_eq!(words[words.len() - 3..], ["/k", "plugin", "/s/x"]);
    }
}

//! Choice of a node's configuration among several files, by NVIDIA's config-manager's rules.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use windlass_host::files::{self, MAX_BYTES, Symlinks};

use crate::mistake::ConfigError;

/// The node's label that names its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LabelValue {
    /// Not known yet: the API server was not reached.
    #[default]
    Unknown,
    /// The node lacks the label.
    Absent,
    /// The label has this value.
    Value(String),
}

/// File with the last known value of the label. A restarted agent continues with this value until it reaches the API
/// server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelFile(PathBuf);

/// A folder of configurations, such as a mounted `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDir(pub PathBuf);

/// Name of the file for nodes without the label.
const DEFAULT_FILE: &str = "default";

// === impl LabelFile ===

impl LabelFile {
    /// The file in this state folder.
    pub fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("config-label"))
    }

    /// The last known value. An empty file stands for a node without the label.
    pub fn load(&self) -> LabelValue {
        match files::read_regular_text(&self.0, Symlinks::Refused, MAX_BYTES) {
            Ok(text) if text.is_empty() => LabelValue::Absent,
            Ok(text) => LabelValue::Value(text),
            Err(_) => LabelValue::Unknown,
        }
    }

    /// Stores the value.
    pub fn store(&self, label: &LabelValue) -> io::Result<()> {
        let text = match label {
            LabelValue::Unknown => return Ok(()),
            LabelValue::Absent => "",
            LabelValue::Value(value) => value,
        };
        files::replace(&self.0, text.as_bytes(), files::FileAccess::Owner).map(drop)
    }
}

// === impl ConfigDir ===

impl ConfigDir {
    /// The file for a label: the file with the label's value as its name, which must exist. Without a label: `default`,
    /// else the only file, else none.
    ///
    /// An unknown label counts as absent: the agent serves without an API server.
    pub fn choose(&self, label: &LabelValue) -> Result<Option<PathBuf>, ConfigError> {
        let files = self.files().map_err(|source| ConfigError::Read(self.0.clone(), source))?;
        let by_name = |name: &str| {
            files.iter().find(|path| path.file_name().is_some_and(|file_name| file_name == name))
        };
        match label {
            LabelValue::Value(name) => by_name(name)
                .cloned()
                .map(Some)
                .ok_or_else(|| ConfigError::NoSuchFile { dir: self.0.clone(), name: name.clone() }),
            LabelValue::Absent | LabelValue::Unknown => {
                let only_file =
                    || if let [only_file] = files.as_slice() { Some(only_file) } else { None };
                Ok(by_name(DEFAULT_FILE).or_else(only_file).cloned())
            }
        }
    }

    /// Visible files: a `ConfigMap` keeps its versions in folders that begin with two dots.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let is_visible = |path: &Path| {
            let is_hidden =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            !is_hidden && path.is_file()
        };
        let paths = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.path()));
        let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
        paths.retain(|path| is_visible(path));
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_label_and_its_absence_are_stored() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let label_file = LabelFile::new(&dir.path().join("state"));
        assert_eq!(label_file.load(), LabelValue::Unknown);
        for label in [LabelValue::Value("big".into()), LabelValue::Absent] {
            label_file.store(&label).expect("written");
            label_file.store(&LabelValue::Unknown).expect("nothing to write");
            assert_eq!(label_file.load(), label);
            let metadata =
                fs::metadata(dir.path().join("state/config-label")).expect("the file exists");
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "only the agent can read it");
        }
    }

    #[test]
    fn a_label_selects_its_file_and_an_absent_label_the_default_or_the_only_file() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let configs = ConfigDir(dir.path().to_owned());
        let choose = |label: &LabelValue| {
            let chosen = configs.choose(label).map_err(|error| error.to_string())?;
            Ok(chosen.map(|path| path.file_name().expect("a file").to_string_lossy().into_owned()))
        };
        let write = |name: &str| fs::write(dir.path().join(name), "").expect("written");
        let big = LabelValue::Value("big".into());
        fs::create_dir(dir.path().join("..data")).expect("created");
        assert_eq!(choose(&LabelValue::Absent), Ok(None), "the folder has no file");
        write("big");
        assert_eq!(choose(&LabelValue::Absent), Ok(Some("big".into())), "the only file");
        write("small");
        assert_eq!(choose(&LabelValue::Unknown), Ok(None), "the choice is ambiguous");
        write("default");
        assert_eq!(choose(&LabelValue::Unknown), Ok(Some("default".into())));
        assert_eq!(choose(&big), Ok(Some("big".into())));
        let missing: Result<_, String> = choose(&LabelValue::Value("../etc/passwd".into()));
        assert!(missing.expect_err("no such file").contains("no file \"../etc/passwd\""));
    }
}

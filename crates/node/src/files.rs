//! Files that are either the old document or the new one, whatever happens in between.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The agent's user alone: it tells of pods and claims, and whose they are.
    Owner,
    /// Whoever is on the node: runtimes, CNI plugins, and people's commands.
    Everyone,
}

// === impl Readers ===

impl Readers {
    /// Whatever the agent's umask is.
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Everyone => 0o644,
        }
    }
}

/// Replaces a file, its folder made where there is none: written beside it under a dot name, flushed to
/// the disk, renamed over it, and the rename flushed too. Leaves a file that already says the same alone.
/// Gives whether it wrote.
pub(crate) fn replace(path: &Path, content: &[u8], readers: Readers) -> io::Result<bool> {
    if says(path, content, readers) {
        return Ok(false);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!(".{}.draft", name.to_string_lossy()));
    let mut file =
        File::options().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
    file.set_permissions(Permissions::from_mode(readers.mode()))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()?;
    Ok(true)
}

/// Whether a file is as it is wanted. An earlier agent let everyone read what is the owner's.
fn says(path: &Path, content: &[u8], readers: Readers) -> bool {
    const ALL: u32 = 0o777;
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & ALL == readers.mode())
        && fs::read(path).is_ok_and(|present| present == content)
}

/// Moves a JSON file that nobody understands out of the way, for a person to look at, and tells where to.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension("json.unreadable");
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_document_is_not_written_again() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.json");
        assert!(replace(&path, b"1", Readers::Everyone).expect("written"));
        assert!(!replace(&path, b"1", Readers::Everyone).expect("read"));
        assert!(replace(&path, b"2", Readers::Everyone).expect("written"));
        assert_eq!(fs::read(&path).expect("there"), b"2");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_is_for_its_readers_whatever_it_was_before() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.json");
        let mode = || fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        fs::write(dir.path().join(".a.json.draft"), "left behind, for everyone").expect("written");
        for (readers, expected) in
            [(Readers::Owner, 0o600), (Readers::Everyone, 0o644), (Readers::Owner, 0o600)]
        {
            assert!(replace(&path, b"1", readers).expect("written"));
            assert_eq!(mode(), expected, "{readers:?}");
        }
    }

    /// A process has one umask, so the test above is run by others.
    #[test]
    fn a_file_is_for_its_readers_whatever_the_umask() {
        let test = "files::tests::a_file_is_for_its_readers_whatever_it_was_before";
        let program = std::env::current_exe().expect("this program");
        for umask in ["000", "077"] {
            let script = format!("umask {umask}; exec \"$0\" --exact {test}");
            let mut command = std::process::Command::new("sh");
            let output = command.args(["-c", &script]).arg(&program).output().expect("sh runs");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "umask {umask}: {said}");
        }
    }
}

//! Replacement of files in one atomic step: readers see the old or the new content.

pub mod folder;
mod regular;
pub(crate) mod reserve;

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

pub use self::regular::{
    MAX_BYTES, Symlinks, open_regular, read_regular, read_regular_text, read_text,
};

/// Read permission of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// The agent's user: the file names pods and claims.
    Owner,
    /// Everyone on the node: runtimes, CNI plugins, commands.
    Everyone,
    /// Everyone on the node, who may execute it too: a program.
    Executable,
}

/// Suffix of a temporary file that replaces another one once it is complete.
const DRAFT_SUFFIX: &str = ".draft";

// === impl FileAccess ===

impl FileAccess {
    /// File mode, independent of the agent's umask.
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Everyone => 0o644,
            Self::Executable => 0o755,
        }
    }
}

/// Replaces a file atomically: writes and syncs a draft in the same folder, renames it, syncs the folder. Creates
/// missing folders. Returns false, and writes nothing, if the file has this content and mode already.
pub fn replace(path: &Path, content: &[u8], access: FileAccess) -> io::Result<bool> {
    if has_content(path, content, access) {
        return Ok(false);
    }
    let (Some(folder), Some(draft)) = (path.parent(), draft(path)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    folder::create_dir_all(folder)?;
    let result = write(&draft, content, access).and_then(|()| fs::rename(&draft, path));
    if result.is_err() {
        // A partial draft would waste space on a full disk.
        let _ = fs::remove_file(&draft);
    }
    result?;
    File::open(folder)?.sync_all()?;
    Ok(true)
}

fn write(draft: &Path, content: &[u8], access: FileAccess) -> io::Result<()> {
    let mut file = create(draft)?;
    file.set_permissions(Permissions::from_mode(access.mode()))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Path of a file's draft: a hidden file in the same folder.
fn draft(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(format!(".{}{DRAFT_SUFFIX}", path.file_name()?.to_string_lossy())))
}

/// Name of the file that a draft would replace; `None` if the name is not that of a draft. A killed agent may leave
/// drafts.
pub fn target_of_draft(name: &str) -> Option<&str> {
    name.strip_prefix('.')?.strip_suffix(DRAFT_SUFFIX)
}

/// Creates a new file, after removing a leftover draft. `create_new` does not follow a link at the path.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => File::options().create_new(true).write(true).mode(0o600).open(path),
    }
}

/// True if the file has this content and mode. The mode counts because earlier versions of the agent left private files
/// readable for everyone.
fn has_content(path: &Path, content: &[u8], access: FileAccess) -> bool {
    const ALL: u32 = 0o777;
    let max_bytes = content.len().try_into().unwrap_or(u64::MAX);
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.permissions().mode() & ALL == access.mode())
        && read_regular(path, Symlinks::Refused, max_bytes).is_ok_and(|current| current == content)
}

/// Renames an unreadable JSON file for inspection; returns its new path.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let new_path = path.with_extension("json.unreadable");
    fs::rename(path, &new_path)?;
    Ok(new_path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_equal_document_is_not_written_again() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.json");
        assert!(replace(&path, b"1", FileAccess::Everyone).expect("written"));
        assert!(!replace(&path, b"1", FileAccess::Everyone).expect("read"));
        assert!(replace(&path, b"2", FileAccess::Everyone).expect("written"));
        assert_eq!(fs::read(&path).expect("the file exists"), b"2");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_has_its_readers_mode_whatever_it_was_before() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.json");
        let mode = || fs::metadata(&path).expect("the file exists").permissions().mode() & 0o777;
        fs::write(dir.path().join(".a.json.draft"), "a leftover draft, readable for everyone")
            .expect("written");
        for (access, expected) in [
            (FileAccess::Owner, 0o600),
            (FileAccess::Everyone, 0o644),
            (FileAccess::Executable, 0o755),
        ] {
            assert!(replace(&path, b"1", access).expect("written"));
            assert_eq!(mode(), expected, "{access:?}");
        }
    }

    #[test]
    fn a_link_in_place_of_draft_or_file_is_replaced_without_its_target() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("precious"), "theirs").expect("written");
        fs::set_permissions(path("precious"), Permissions::from_mode(0o640)).expect("set");
        for (name, target) in
            [(".a.json.draft", "precious"), ("a.json", "precious"), ("a.json", "new")]
        {
            let _ = fs::remove_file(path(name));
            symlink(target, path(name)).expect("linked");
            assert!(replace(&path("a.json"), b"ours", FileAccess::Everyone).expect("written"));
            assert!(
                fs::symlink_metadata(path("a.json")).expect("the file exists").is_file(),
                "{name}"
            );
            assert_eq!(fs::read(path("a.json")).expect("the file exists"), b"ours");
        }
        assert_eq!(fs::read(path("precious")).expect("the file exists"), b"theirs");
        let mode =
            fs::metadata(path("precious")).expect("the file exists").permissions().mode() & 0o777;
        assert_eq!((mode, path("new").exists()), (0o640, false));
    }

    /// A process has a single umask, so child processes run the test above.
    #[test]
    fn a_file_has_its_readers_mode_whatever_the_umask() {
        run_under_umasks("files::tests::a_file_has_its_readers_mode_whatever_it_was_before");
    }

    /// Runs a test of this program under umasks that remove nothing and everything.
    pub(super) fn run_under_umasks(test: &str) {
        let program = std::env::current_exe().expect("this program");
        for umask in ["000", "077"] {
            let script = format!("umask {umask}; exec \"$0\" --exact {test}");
            let mut command = std::process::Command::new("sh");
            let output = command.args(["-c", &script]).arg(&program).output().expect("sh runs");
            let stdout_text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && stdout_text.contains("1 passed"),
                "umask {umask}: {stdout_text}"
            );
        }
    }
}

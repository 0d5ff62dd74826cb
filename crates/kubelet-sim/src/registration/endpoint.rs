//! Path of a plugin's socket, resolved from the endpoint in its `Register` request.

use std::path::{Path, PathBuf};

/// Joins the folder and the endpoint, as Go's `filepath.Join` does: `/abs` is below the folder, `..`
/// leads out of it, and an empty endpoint is the folder itself. Symbolic links are not resolved.
pub(super) fn resolve(dir: &Path, endpoint: &str) -> PathBuf {
    let mut path = dir.to_owned();
    for part in endpoint.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_joined_and_cleaned_as_go_does() {
        for (endpoint, expected) in [
            ("x.sock", "/k/p/x.sock"),
            ("sub/x.sock", "/k/p/sub/x.sock"),
            ("/abs/x.sock", "/k/p/abs/x.sock"),
            ("../x.sock", "/k/x.sock"),
            ("a/../b//./x.sock", "/k/p/b/x.sock"),
            ("../../../../x.sock", "/x.sock"),
            ("", "/k/p"),
        ] {
            assert_eq!(resolve(Path::new("/k/p"), endpoint), Path::new(expected), "{endpoint}");
        }
    }
}

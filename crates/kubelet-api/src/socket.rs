//! Unix sockets of the kubelet and its plugins: check the path, bind, dial.

use std::{
    fmt, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net,
    },
    path::{Path, PathBuf},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;
use tonic::{
    codegen::http::Uri,
    transport::{Channel, Endpoint},
};

/// Longest path in bytes. `sockaddr_un.sun_path` has 108 bytes, including the final NUL (unix(7)).
pub const MAX_PATH_BYTES: usize = 107;

/// Origin of the kubelet's requests to plugins; the `:authority` is `localhost`.
const ORIGIN: &str = "http://localhost";

/// Listen backlog: the value that tokio uses.
const BACKLOG: i32 = 1024;

/// Path of a unix socket: UTF-8, and at most [`MAX_PATH_BYTES`] long.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPath(PathBuf);

/// Identity of the socket file at a path. A socket bound again at the same path has another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    /// Time of the last status change: seconds and nanoseconds. File systems reuse inode numbers at once.
    changed: (i64, i64),
}

/// Errors of socket operations.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit the kernel's address structure.
    #[error(
        "socket path {path} has {length} bytes, the kernel takes {MAX_PATH_BYTES}: choose a shorter directory"
    )]
    TooLong {
        /// Path as given.
        path: PathBuf,
        /// Length in bytes.
        length: usize,
    },
    /// The path is not UTF-8, so it cannot be sent to the kubelet.
    #[error("socket path {0} is not UTF-8")]
    NotUtf8(PathBuf),
    /// The path names a file that is not a socket. The file stays.
    #[error("{0} exists and is not a socket: move it away")]
    Occupied(PathBuf),
    /// A system call failed.
    #[error("cannot {action} socket {path}")]
    Io {
        /// Failed action: `bind` or `replace`.
        action: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The connection failed: nothing listens, or the server does not speak HTTP/2.
    #[error("cannot dial socket {0}")]
    Dial(PathBuf, #[source] tonic::transport::Error),
}

// === impl SocketPath ===

impl SocketPath {
    /// Checks length and encoding; the file need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, SocketError> {
        let path = path.into();
        let length = path.as_os_str().as_bytes().len();
        if length > MAX_PATH_BYTES {
            return Err(SocketError::TooLong { path, length });
        }
        if path.to_str().is_none() {
            return Err(SocketError::NotUtf8(path));
        }
        Ok(Self(path))
    }

    /// Path of the socket.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// File name of the socket, which a plugin sends to the kubelet as its endpoint.
    pub fn file_name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Binds a listener that only this user can connect to. Replaces an existing socket, even one in use; callers
    /// prevent the latter with a lock.
    ///
    /// # Errors
    ///
    /// The path names another kind of file, or a system call fails.
    pub fn bind(&self) -> Result<UnixListener, SocketError> {
        self.remove_stale()?;
        self.listen().map_err(|source| self.io_error("bind", source))
    }

    /// Binds, sets the mode, then listens. Connections fail before the last step, so none bypasses the mode.
    fn listen(&self) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&self.0)?)?;
        std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&socket, BACKLOG)?;
        UnixListener::from_std(net::UnixListener::from(socket))
    }

    /// Identity of the socket at this path; `None` if the file is missing or not a socket.
    pub fn identity(&self) -> Option<SocketIdentity> {
        let metadata = std::fs::symlink_metadata(&self.0).ok()?;
        metadata.file_type().is_socket().then(|| SocketIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Connects as the kubelet does, with `:authority: localhost`. Returns once the connection is open.
    pub async fn dial(&self) -> Result<Channel, SocketError> {
        let address = format!("unix:{self}");
        let endpoint = Endpoint::from_shared(address)
            .map_err(|source| SocketError::Dial(self.0.clone(), source))?;
        endpoint
            .origin(Uri::from_static(ORIGIN))
            .connect()
            .await
            .map_err(|source| SocketError::Dial(self.0.clone(), source))
    }

    fn remove_stale(&self) -> Result<(), SocketError> {
        match std::fs::symlink_metadata(&self.0) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                Err(SocketError::Occupied(self.0.clone()))
            }
            Ok(_) => {
                std::fs::remove_file(&self.0).map_err(|source| self.io_error("replace", source))
            }
            Err(_) => Ok(()),
        }
    }

    fn io_error(&self, action: &'static str, source: io::Error) -> SocketError {
        SocketError::Io { action, path: self.0.clone(), source }
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_107_bytes_fits_and_108_is_refused_with_the_path() {
        let longest = format!("/{}", "x".repeat(106));
        let too_long = format!("/{}", "x".repeat(107));
        assert_eq!(SocketPath::new(&longest).expect("the path fits").to_string(), longest);
        let error = SocketPath::new(&too_long).expect_err("the path is too long").to_string();
        assert!(error.contains(&too_long) && error.contains("108 bytes"), "{error}");
    }

    #[tokio::test]
    async fn bind_replaces_a_stale_socket_and_leaves_other_files_alone() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = SocketPath::new(dir.path().join("a.sock")).expect("the path fits");
        drop(path.bind().expect("first bind"));
        let first = path.identity();
        let _second = path.bind().expect("bind over the stale socket");
        assert!(first.is_some() && path.identity().is_some());

        let file = SocketPath::new(dir.path().join("file")).expect("the path fits");
        std::fs::write(file.as_path(), "precious").expect("the folder is writable");
        assert!(matches!(file.bind(), Err(SocketError::Occupied(_))));
        assert_eq!(
            std::fs::read_to_string(file.as_path()).expect("the file is still there"),
            "precious"
        );
    }
}

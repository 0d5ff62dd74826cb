//! Unix sockets of the kubelet and its plugins: path checks, bind, dial.

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

/// Longest path that fits `sockaddr_un.sun_path`, which has 108 bytes with the final NUL (unix(7)).
pub const MAX_PATH_BYTES: usize = 107;

/// `:authority` of the kubelet's requests to plugins.
const ORIGIN: &str = "http://localhost";

/// Listen backlog, as in tokio.
const BACKLOG: i32 = 1024;

/// Path that can be bound and dialled: UTF-8, and short enough for the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPath(PathBuf);

/// File behind a socket path at one moment; binding again changes the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds of the last change: file systems reuse inode numbers at once.
    changed: (i64, i64),
}

/// Failed use of a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path exceeds the kernel's address structure.
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
    NotText(PathBuf),
    /// A file that is not a socket has the path; it is left alone.
    #[error("{0} exists and is not a socket: move it away")]
    Occupied(PathBuf),
    /// Error of the kernel.
    #[error("cannot {action} socket {path}")]
    Io {
        /// Action: `bind`, `replace` or `dial`.
        action: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The other side does not speak HTTP/2.
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
            return Err(SocketError::NotText(path));
        }
        Ok(Self(path))
    }

    /// Path of the socket.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Last component, which a plugin sends to the kubelet as its endpoint.
    pub fn file_name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Binds a listener for this user only, in place of a stale socket. The caller's lock prevents replacing a live
    /// process's socket.
    pub fn bind(&self) -> Result<UnixListener, SocketError> {
        self.remove_stale()?;
        self.listen().map_err(|source| self.io("bind", source))
    }

    /// Binds the socket; nobody can connect before it has its mode and listens.
    fn listen(&self) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&self.0)?)?;
        std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&socket, BACKLOG)?;
        UnixListener::from_std(net::UnixListener::from(socket))
    }

    /// Identity of the socket at this path, if one exists.
    pub fn identity(&self) -> Option<SocketIdentity> {
        let found = std::fs::symlink_metadata(&self.0).ok()?;
        found.file_type().is_socket().then(|| SocketIdentity {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Opens a channel as the kubelet does: at once, with `:authority: localhost`.
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
            Ok(found) if !found.file_type().is_socket() => {
                Err(SocketError::Occupied(self.0.clone()))
            }
            Ok(_) => std::fs::remove_file(&self.0).map_err(|source| self.io("replace", source)),
            Err(_) => Ok(()),
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> SocketError {
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
        let fits = format!("/{}", "x".repeat(106));
        let over = format!("/{}", "x".repeat(107));
        assert_eq!(SocketPath::new(&fits).expect("fits").to_string(), fits);
        let error = SocketPath::new(&over).expect_err("too long").to_string();
        assert!(error.contains(&over) && error.contains("108 bytes"), "{error}");
    }

    #[tokio::test]
    async fn bind_replaces_a_stale_socket_and_leaves_other_files_alone() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = SocketPath::new(dir.path().join("a.sock")).expect("short");
        drop(path.bind().expect("first bind"));
        let first = path.identity();
        let _second = path.bind().expect("bind over the stale socket");
        assert!(first.is_some() && path.identity().is_some());

        let file = SocketPath::new(dir.path().join("file")).expect("short");
        std::fs::write(file.as_path(), "precious").expect("written");
        assert!(matches!(file.bind(), Err(SocketError::Occupied(_))));
        assert_eq!(std::fs::read_to_string(file.as_path()).expect("still there"), "precious");
    }
}

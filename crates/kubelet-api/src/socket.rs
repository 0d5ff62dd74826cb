//! Unix sockets as the kubelet and its plugins use them: checked paths, bind, dial.

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

/// What the kubelet sends as `:authority` to a plugin, whatever the socket is called.
const ORIGIN: &str = "http://localhost";

/// Connections that wait to be accepted, as tokio has it.
const BACKLOG: i32 = 1024;

/// A path that can be bound and dialled: short enough for the kernel, and text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketPath(PathBuf);

/// Which file a socket path pointed to at one moment; another bind makes another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds of the last change: file systems give a freed inode number out again
    /// at once.
    changed: (i64, i64),
}

/// Why a socket could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit the kernel's address structure.
    #[error(
        "socket path {path} has {length} bytes, the kernel takes {MAX_PATH_BYTES}: choose a shorter directory"
    )]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path is not UTF-8, so it cannot be told to the kubelet.
    #[error("socket path {0} is not UTF-8")]
    NotText(PathBuf),
    /// Something that is not a socket has the name; it is left alone.
    #[error("{0} exists and is not a socket: move it away")]
    Occupied(PathBuf),
    /// The kernel refused.
    #[error("cannot {action} socket {path}")]
    Io {
        /// What was tried: `bind`, `replace` or `dial`.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The other side did not answer as an HTTP/2 server.
    #[error("cannot dial socket {path}")]
    Dial {
        /// The socket.
        path: PathBuf,
        /// The transport's answer.
        source: tonic::transport::Error,
    },
}

// === impl SocketPath ===

impl SocketPath {
    /// Checks the path's length and encoding; the file need not exist.
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

    /// The path itself.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The last component, which a plugin tells the kubelet as its endpoint.
    pub fn file_name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Binds a listener that only this user may connect to, in place of a socket left behind by an
    /// earlier process. The caller holds a lock that keeps a living process from being replaced.
    pub fn bind(&self) -> Result<UnixListener, SocketError> {
        self.remove_stale()?;
        self.listen().map_err(|source| self.io("bind", source))
    }

    /// Nobody connects to a socket before it listens, and by then it has its mode.
    fn listen(&self) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&self.0)?)?;
        std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&socket, BACKLOG)?;
        UnixListener::from_std(net::UnixListener::from(socket))
    }

    /// The identity of the socket that has this path now, if one has.
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
            .map_err(|source| SocketError::Dial { path: self.0.clone(), source })?;
        endpoint
            .origin(Uri::from_static(ORIGIN))
            .connect()
            .await
            .map_err(|source| SocketError::Dial { path: self.0.clone(), source })
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

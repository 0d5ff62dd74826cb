//! Kernel uevents (`NETLINK_KOBJECT_UEVENT`) from the host's network namespace.

use std::{io, os::unix::net::UnixDatagram as StdDatagram};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind,
    netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
    socket_with,
};
use tokio::net::UnixDatagram;

/// Netlink socket of the kernel's uevents.
#[derive(Debug)]
pub struct Uevents {
    /// The netlink socket, in tokio's type for datagram sockets, of which only `recv` is used.
    socket: UnixDatagram,
    buffer: Box<[u8; MAX_BYTES]>,
}

/// Multicast group of the kernel's own messages. Those of udev have group 2.
const KERNEL_GROUP: u32 = 1;

/// Maximum size of a message with its header, in bytes (`UEVENT_BUFFER_SIZE`).
const MAX_BYTES: usize = 4096;

/// Subsystems without allocatable devices, whose events come constantly or with every container.
const IGNORED_SUBSYSTEMS: &[&str] = &[
    "queues",
    "bdi",
    "slab",
    "power_supply",
    "thermal",
    "cpu",
    "memory",
    "workqueue",
    "wakeup",
    "cgroup",
    "rtc",
    "hwmon",
];

/// Paths of virtual devices that come and go with containers: interfaces, and block devices of images and volumes.
const CONTAINER_PATHS: [&str; 3] =
    ["/devices/virtual/net/", "/devices/virtual/block/", "/devices/virtual/bdi/"];

/// Subsystems whose `change` events matter, such as resets.
const CHANGE_SUBSYSTEMS: [&str; 6] = ["pci", "drm", "usb", "fpga_manager", "infiniband", "vdpa"];

// === impl Uevents ===

impl Uevents {
    /// Subscribes to the kernel's messages.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the socket.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        let socket = UnixDatagram::from_std(StdDatagram::from(socket))?;
        Ok(Self { socket, buffer: Box::new([0; MAX_BYTES]) })
    }

    /// Waits for a relevant message. An overflow of the socket's buffer counts as one, since messages were lost.
    pub async fn next(&mut self) {
        loop {
            match self.socket.recv(self.buffer.as_mut_slice()).await {
                Ok(length) if is_relevant(&self.buffer[..length]) => return,
                Ok(_) => {}
                // The socket buffer overflowed.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
                {
                    return;
                }
                Err(_) => std::future::pending().await,
            }
        }
    }
}

/// True for the event of a device that a source may search for: it appeared, vanished, changed, or its driver was bound
/// or unbound.
fn is_relevant(message: &[u8]) -> bool {
    let text = String::from_utf8_lossy(message);
    let value = |key: &str| text.split('\0').find_map(|line| line.strip_prefix(key));
    let (action, subsystem) = (value("ACTION="), value("SUBSYSTEM="));
    let Some(subsystem) = subsystem.filter(|subsystem| !IGNORED_SUBSYSTEMS.contains(subsystem))
    else {
        return false;
    };
    let is_of_container = value("DEVPATH=")
        .is_some_and(|path| CONTAINER_PATHS.iter().any(|folder| path.starts_with(folder)));
    match action {
        Some("change") => CHANGE_SUBSYSTEMS.contains(&subsystem),
        Some("add" | "remove" | "move" | "bind" | "unbind" | "online" | "offline") => {
            !is_of_container
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(action: &str, path: &str, subsystem: &str) -> Vec<u8> {
        let text = format!(
            "{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=1\0"
        );
        text.into_bytes()
    }

    #[test]
    fn devices_are_distinguished_from_those_of_containers() {
        for (action, path, subsystem, expected) in [
            ("add", "/devices/pci0000:00/0000:00:14.0/usb1/1-4", "usb", true),
            ("unbind", "/devices/pci0000:00/0000:00:02.0", "pci", true),
            ("change", "/devices/pci0000:00/0000:00:02.0/drm/card0", "drm", true),
            ("add", "/devices/virtual/misc/kvm", "misc", true),
            ("add", "/devices/virtual/net/veth0", "net", false),
            ("add", "/devices/virtual/net/veth0/queues/rx-0", "queues", false),
            ("add", "/devices/virtual/block/dm-3", "block", false),
            ("add", "/devices/pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1", "block", true),
            ("change", "/devices/virtual/block/loop0", "block", false),
            ("change", "/devices/LNXSYSTM:00/power", "power_supply", false),
        ] {
            assert_eq!(is_relevant(&message(action, path, subsystem)), expected, "{action} {path}");
        }
        assert!(!is_relevant(b"libudev\0\xfe\xed\xca\xfe"), "messages of udev are ignored");
    }
}

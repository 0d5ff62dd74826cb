//! Folders of NVIDIA's driver below the driver root: the same lists for NVML, programs and CDI documents.
//!
//! GKE, Container-Optimized OS and the GPU operator's driver container keep the driver in a separate tree. If the
//! configuration names that tree as `driver.root`, the usual folders of packages are below it. For the default root
//! `/`, the lists also have the folders within such trees.

/// GKE's installation of the driver.
pub const GKE: &str = "/home/kubernetes/bin/nvidia";

/// Folders of libraries: in the order of NVIDIA's container toolkit; then Debian's and Fedora's for switchable drivers,
/// Container-Optimized OS's, GKE's, and the GPU operator's. Folders of 32-bit libraries are excluded.
pub const LIBRARIES: &[&str] = &[
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
];

/// Folders of programs in the order of a `PATH`.
pub const PROGRAMS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Folders of programs that a usual `PATH` lacks: those of Container-Optimized OS, GKE, and the GPU operator.
pub const UNUSUAL_PROGRAMS: &[&str] =
    &["/usr/local/nvidia/bin", "/home/kubernetes/bin/nvidia/bin", "/run/nvidia/driver/usr/bin"];

/// Folders of programs in the order of the search.
pub fn programs() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().chain(UNUSUAL_PROGRAMS).copied()
}

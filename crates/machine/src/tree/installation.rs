//! Files of an NVIDIA driver installation: libraries with links, programs, firmware, a socket, graphics files.
//! Containers can mount these files, but the programs and libraries do not work.

use std::path::Path;

use super::Tree;
use crate::profile::Driver;

/// Library folder of Debian and Ubuntu packages.
const LIBRARY_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// Libraries with the driver's version, and the names of their links. `libnvidia-ml.so` has no link: the loadable NVML
/// library is beside the tree.
const DRIVER_LIBRARIES: &[(&str, &[&str])] = &[
    ("libcuda.so", &["libcuda.so.1", "libcuda.so"]),
    ("libcudadebugger.so", &["libcudadebugger.so.1"]),
    ("libnvcuvid.so", &["libnvcuvid.so.1"]),
    ("libnvidia-allocator.so", &["libnvidia-allocator.so.1"]),
    ("libnvidia-cfg.so", &["libnvidia-cfg.so.1"]),
    ("libnvidia-encode.so", &["libnvidia-encode.so.1"]),
    ("libnvidia-glcore.so", &[]),
    ("libnvidia-gpucomp.so", &[]),
    ("libnvidia-ml.so", &[]),
    ("libnvidia-nvvm.so", &["libnvidia-nvvm.so.4"]),
    ("libnvidia-opencl.so", &["libnvidia-opencl.so.1"]),
    ("libnvidia-opticalflow.so", &["libnvidia-opticalflow.so.1"]),
    ("libnvidia-ptxjitcompiler.so", &["libnvidia-ptxjitcompiler.so.1"]),
    ("libEGL_nvidia.so", &["libEGL_nvidia.so.0"]),
    ("libGLX_nvidia.so", &["libGLX_nvidia.so.0"]),
    ("libnvoptix.so", &["libnvoptix.so.1"]),
    ("vdpau/libvdpau_nvidia.so", &["vdpau/libvdpau_nvidia.so.1"]),
];

/// Library with its own version.
const EGL_GBM: [&str; 2] = ["libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"];

/// Library of another package, whose name matches the driver's pattern.
const FOREIGN_LIBRARY: [&str; 2] = ["libnvidia-container.so.1.17.8", "libnvidia-container.so.1"];

/// Programs that do nothing.
const PROGRAMS: [&str; 5] = [
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
];

/// Firmware of the GPU system processor, by generation.
const FIRMWARE: [&str; 2] = ["gsp_ga10x.bin", "gsp_tu10x.bin"];

/// Other installed files.
const FILES: [&str; 4] = [
    "run/nvidia-persistenced/socket",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "etc/OpenCL/vendors/nvidia.icd",
];

/// Content of every file.
const FILE_CONTENT: &str = "simulated";

// === impl Tree ===

impl Tree {
    /// Adds the driver's files, as a package installs them.
    pub(super) fn installation(&mut self, driver: &Driver) {
        let (libraries, version) = (Path::new(LIBRARY_DIR), &driver.version);
        for (stem, links) in DRIVER_LIBRARIES {
            self.library(libraries, &format!("{stem}.{version}"), links);
        }
        for [file, link] in [EGL_GBM, FOREIGN_LIBRARY] {
            self.library(libraries, file, &[link]);
        }
        for program in PROGRAMS {
            self.file(Path::new("usr/bin").join(program), FILE_CONTENT);
        }
        for firmware in FIRMWARE {
            self.file(Path::new("lib/firmware/nvidia").join(version).join(firmware), FILE_CONTENT);
        }
        for path in FILES {
            self.file(path, FILE_CONTENT);
        }
    }

    fn library(&mut self, folder: &Path, file: &str, links: &[&str]) {
        let file = folder.join(file);
        self.file(&file, FILE_CONTENT);
        for link in links {
            let name = Path::new(file.file_name().expect("a library has a name"));
            self.link_literal(folder.join(link), name);
        }
    }
}

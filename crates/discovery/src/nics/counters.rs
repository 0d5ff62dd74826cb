//! Counters of a network function's RDMA ports.
//!
//! The counters cover RDMA traffic only. Node exporters already read the counters of network interfaces.

use std::path::Path;

use windlass_core::{
    device::Device,
    telemetry::{PortSample, Sample},
};
use windlass_host::{Host, hwmon::number};

use super::{
    attributes::{PORT_STATE, RDMA_DEVICE},
    ports::is_active,
};

/// Data counters of a port count units of four octets, on Ethernet too
/// (`Documentation/ABI/stable/sysfs-class-infiniband`).
const UNIT_BYTES: u64 = 4;

/// Counters of the ports of the function's first RDMA device. Blocks: firmware answers reads of some files.
pub(crate) fn sample(host: &Host, device: &Device) -> Sample {
    let Some(rdma) = device.text_attribute(&RDMA_DEVICE) else { return Sample::default() };
    let folder = Path::new("/sys/class/infiniband").join(rdma).join("ports");
    let ports = host.entry_names(&folder).into_iter().enumerate().map(|(index, name)| {
        let folder = folder.join(&name);
        // The scan has already read the state of the first port.
        let scanned_state =
            device.text_attribute(&PORT_STATE).filter(|_| index == 0).map(str::to_owned);
        let state = scanned_state.or_else(|| host.read_text(folder.join("state")));
        let is_active = state.as_deref().map(is_active);
        PortSample { is_active, port: name, ..counters(host, &folder.join("counters")) }
    });
    Sample { ports: ports.collect(), ..Sample::default() }
}

fn counters(host: &Host, folder: &Path) -> PortSample {
    let counter = |file: &str| number(host, &folder.join(file));
    let bytes = |file: &str| counter(file)?.checked_mul(UNIT_BYTES);
    PortSample {
        received_bytes: bytes("port_rcv_data"),
        sent_bytes: bytes("port_xmit_data"),
        receive_errors: counter("port_rcv_errors"),
        send_discards: counter("port_xmit_discards"),
        symbol_errors: counter("symbol_error"),
        link_recoveries: counter("link_error_recovery"),
        link_downs: counter("link_downed"),
        ..PortSample::default()
    }
}

//! Sources that the configuration describes: their devices, the edits of containers, and changes of the host.

mod bad_input;
mod churn;
mod find;
mod hotplug;
mod probes;

/// A PCI accelerator whose driver created a node.
const ACCELERATOR: &str = r#"
- name: accelerator
  pci: {path: "pci0000:15/0000:15:01.0/0000:1b:00.0", id: "1ac1:089a", class: 0x120000, numa: 1}
  driver: apex
  children:
  - {folder: apex/apex_0, class: apex, number: "120:0", node: apex_0, files: {temp: "41000"}}
"#;

/// Source of sticks, by their vendor id.
const BY_IDS: &str = r#"
sources:
- name: stick
  resource: example.com/stick
  find: {bus: usb}
  match: 'device.attributes["windlass.dev"].usbVendor == "0403"'
"#;

/// A USB stick with a serial port in it.
const STICK: &str = r#"
- name: stick
  folder: pci0000:00/0000:00:14.0/usb1/1-4
  bus: usb
  driver: usb
  uevent: {DEVTYPE: usb_device}
  files: {idVendor: "0403", idProduct: "6001", serial: FT4X9, busnum: "1", devnum: "4"}
  children:
  - {folder: "1-4:1.0", bus: usb, driver: ftdi_sio, files: {bInterfaceClass: ff}}
  - {folder: "1-4:1.0/ttyUSB0", bus: usb-serial, driver: ftdi_sio}
  - {folder: "1-4:1.0/ttyUSB0/tty/ttyUSB0", class: tty, number: "188:0", node: ttyUSB0}
"#;

/// [`STICK`] at port 4, and another with this serial number at port 5.
fn two_sticks(other_serial: &str) -> String {
    let names = STICK.replace("1-4", "1-5").replace("name: stick", "name: other");
    let numbers = names.replace("ttyUSB0", "ttyUSB1").replace("188:0", "188:1");
    let other = numbers.replace("FT4X9", other_serial).replace("devnum: \"4\"", "devnum: \"5\"");
    format!("{STICK}{other}")
}

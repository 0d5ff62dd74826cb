//! How the kubelet finds the driver.

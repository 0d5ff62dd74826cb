//! Built-in profiles, embedded from `profiles/`.

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// Name and text of each profile, in order of documentation.
        pub(super) const ALL: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../profiles/", $name, ".yaml")))),*
        ];
    };
}

profiles![
    "dgx-a100",
    "dgx-h100",
    "hgx-h200",
    "hgx-b200",
    "16-gpu",
    "dgx-1",
    "mig-a100",
    "mig-pcie",
    "l40s-pcie",
    "t4-edge",
    "mixed-models",
    "rdma",
    "mi300x",
    "mi300x-cpx",
    "flex-170",
    "alveo",
    "dfl",
    "kria",
];

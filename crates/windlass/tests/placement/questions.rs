//! Requests for each machine.

use windlass_core::placement::Policy::{self, Aligned, Distributed, NumaStrict, Packed};

/// Question about a machine, with devices by their short names (`labels`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementCase {
    pub(crate) policy: Policy,
    pub(crate) size: usize,
    pub(crate) free: &'static str,
    pub(crate) required: &'static str,
    pub(crate) near: &'static str,
}

/// Requests for one machine: sizes of all its devices, then further requests.
pub(crate) struct MachineCases {
    pub(crate) machine: &'static str,
    pub(crate) sizes: &'static [usize],
    pub(crate) questions: &'static [PlacementCase],
}

pub(crate) const ALL: &[MachineCases] = &[
    MachineCases {
        machine: "dgx-1",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            // The choice leaves a quad and a pair.
            PlacementCase::new(2, "0 3-7"),
            PlacementCase::new(2, "1 2 4-7"),
            PlacementCase::new(1, "0 4-7"),
            PlacementCase::new(4, "0-3 5 7"),
            // A pair across quads is as good as one in a quad, and leaves quads complete.
            PlacementCase::new(2, "0 4 1"),
            PlacementCase::new(2, "0 5 6"),
            PlacementCase::new(2, "0 5"),
            PlacementCase::new(3, "1-7"),
            PlacementCase::new(2, "all").with_required("5"),
            PlacementCase::new(4, "all").with_required("5"),
            PlacementCase::new(4, "all").with_required("0 7"),
            PlacementCase::new(1, "all").with_near("mlx5_2"),
            PlacementCase::new(2, "all").with_near("mlx5_2"),
            PlacementCase::new(2, "1-7").with_policy(Packed),
            PlacementCase::new(2, "1-7").with_policy(Distributed),
            PlacementCase::new(4, "1-7").with_policy(NumaStrict),
            PlacementCase::new(4, "1-3 5-7").with_policy(NumaStrict),
        ],
    },
    MachineCases {
        machine: "dgx-a100",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            PlacementCase::new(2, "0 2 4 5"),
            PlacementCase::new(2, "0 1 2 3 4"),
            PlacementCase::new(1, "0 2 3 4 5"),
            PlacementCase::new(3, "1-7"),
            PlacementCase::new(4, "1-7"),
            PlacementCase::new(2, "all").with_required("6"),
        ],
    },
    MachineCases {
        machine: "dgx-h100",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            PlacementCase::new(2, "0 4-7"),
            PlacementCase::new(2, "0 1 4-7"),
            PlacementCase::new(1, "0 1 4-7"),
            PlacementCase::new(3, "0-2 4-7"),
            PlacementCase::new(4, "1-7"),
            PlacementCase::new(2, "all").with_required("0 7"),
            PlacementCase::new(2, "1-7").with_policy(Packed),
            PlacementCase::new(2, "1-7").with_policy(Distributed),
            PlacementCase::new(4, "0-2 5-7").with_policy(NumaStrict),
        ],
    },
    MachineCases {
        machine: "16-gpu",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        questions: &[
            PlacementCase::new(2, "0 2 4-7 8-15"),
            PlacementCase::new(4, "0-5 8-15"),
            PlacementCase::new(4, "0 1 4 5 8-15"),
            PlacementCase::new(8, "1-15"),
            PlacementCase::new(1, "1-15"),
            PlacementCase::new(4, "all").with_required("3"),
            PlacementCase::new(2, "1-15").with_policy(Packed),
            PlacementCase::new(4, "0-11").with_policy(Distributed),
        ],
    },
    MachineCases {
        machine: "l40s-pcie",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            PlacementCase::new(2, "0 2 4 5"),
            PlacementCase::new(1, "0-2 4-7"),
            PlacementCase::new(1, "2-7"),
            PlacementCase::new(3, "1-7"),
            PlacementCase::new(4, "0-2 4-6"),
            PlacementCase::new(2, "all").with_near("mlx5_1"),
            PlacementCase::new(2, "all").with_required("2"),
        ],
    },
    MachineCases {
        machine: "mixed-models",
        sizes: &[1, 2, 3, 4, 5, 6],
        questions: &[
            PlacementCase::new(1, "0-3"),
            PlacementCase::new(2, "1-5"),
            PlacementCase::new(2, "all").with_required("1"),
        ],
    },
    MachineCases {
        machine: "mig-a100",
        sizes: &[1, 2, 3, 7, 8],
        questions: &[
            PlacementCase::new(1, "all").with_policy(Packed),
            PlacementCase::new(1, "all").with_policy(Distributed),
            PlacementCase::new(2, "all").with_policy(Distributed),
        ],
    },
    MachineCases {
        machine: "mig-mix",
        sizes: &[1, 2, 3, 4, 7, 8, 9, 14, 28],
        questions: &[
            PlacementCase::new(1, "all").with_policy(Packed),
            PlacementCase::new(2, "all").with_policy(Packed),
            PlacementCase::new(4, "all").with_policy(Distributed),
        ],
    },
    MachineCases {
        machine: "mi300x",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            PlacementCase::new(2, "0 4-7"),
            PlacementCase::new(2, "0 1 4-7"),
            PlacementCase::new(4, "1-7"),
        ],
    },
    MachineCases {
        machine: "mi300x-cpx",
        sizes: &[1, 2, 4, 8, 9, 12, 16, 32, 33],
        questions: &[
            PlacementCase::new(1, "0:1-7:7"),
            PlacementCase::new(2, "0:7 1:5-1:7 2:0-7:7"),
            PlacementCase::new(4, "0:0-0:5 1:0-1:4 2:0-2:7"),
            PlacementCase::new(8, "0:1-7:7"),
            PlacementCase::new(8, "0:1-0:7 1:1-1:7 5:1-5:7"),
            PlacementCase::new(4, "all").with_required("3:3"),
            PlacementCase::new(2, "0:1-7:7").with_policy(Packed),
            PlacementCase::new(10, "0:1-7:7").with_policy(Packed),
            PlacementCase::new(2, "0:1-7:7").with_policy(Distributed),
        ],
    },
];

// === impl PlacementCase ===

impl PlacementCase {
    pub(crate) const fn new(size: usize, free: &'static str) -> Self {
        Self { policy: Aligned, size, free, required: "", near: "" }
    }

    const fn with_required(self, required: &'static str) -> Self {
        Self { required, ..self }
    }

    const fn with_near(self, near: &'static str) -> Self {
        Self { near, ..self }
    }

    const fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }
}

//! Requests for each machine.

use windlass_core::placement::Policy::{self, Aligned, Distributed, NumaStrict, Packed};

/// Question about a machine, with devices by their short names (`labels`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) policy: Policy,
    pub(crate) size: usize,
    pub(crate) free: &'static str,
    pub(crate) required: &'static str,
    pub(crate) near: &'static str,
}

/// Requests for one machine: sizes of all its devices, then further requests.
pub(crate) struct MachineQuestions {
    pub(crate) machine: &'static str,
    pub(crate) sizes: &'static [usize],
    pub(crate) questions: &'static [Question],
}

pub(crate) const ALL: &[MachineQuestions] = &[
    MachineQuestions {
        machine: "dgx-1",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            // The choice leaves a quad and a pair.
            Question::new(2, "0 3-7"),
            Question::new(2, "1 2 4-7"),
            Question::new(1, "0 4-7"),
            Question::new(4, "0-3 5 7"),
            // A pair across quads is as good as one in a quad, and leaves quads complete.
            Question::new(2, "0 4 1"),
            Question::new(2, "0 5 6"),
            Question::new(2, "0 5"),
            Question::new(3, "1-7"),
            Question::new(2, "all").with_required("5"),
            Question::new(4, "all").with_required("5"),
            Question::new(4, "all").with_required("0 7"),
            Question::new(1, "all").with_near("mlx5_2"),
            Question::new(2, "all").with_near("mlx5_2"),
            Question::new(2, "1-7").with_policy(Packed),
            Question::new(2, "1-7").with_policy(Distributed),
            Question::new(4, "1-7").with_policy(NumaStrict),
            Question::new(4, "1-3 5-7").with_policy(NumaStrict),
        ],
    },
    MachineQuestions {
        machine: "dgx-a100",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            Question::new(2, "0 2 4 5"),
            Question::new(2, "0 1 2 3 4"),
            Question::new(1, "0 2 3 4 5"),
            Question::new(3, "1-7"),
            Question::new(4, "1-7"),
            Question::new(2, "all").with_required("6"),
        ],
    },
    MachineQuestions {
        machine: "dgx-h100",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            Question::new(2, "0 4-7"),
            Question::new(2, "0 1 4-7"),
            Question::new(1, "0 1 4-7"),
            Question::new(3, "0-2 4-7"),
            Question::new(4, "1-7"),
            Question::new(2, "all").with_required("0 7"),
            Question::new(2, "1-7").with_policy(Packed),
            Question::new(2, "1-7").with_policy(Distributed),
            Question::new(4, "0-2 5-7").with_policy(NumaStrict),
        ],
    },
    MachineQuestions {
        machine: "16-gpu",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        questions: &[
            Question::new(2, "0 2 4-7 8-15"),
            Question::new(4, "0-5 8-15"),
            Question::new(4, "0 1 4 5 8-15"),
            Question::new(8, "1-15"),
            Question::new(1, "1-15"),
            Question::new(4, "all").with_required("3"),
            Question::new(2, "1-15").with_policy(Packed),
            Question::new(4, "0-11").with_policy(Distributed),
        ],
    },
    MachineQuestions {
        machine: "l40s-pcie",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            Question::new(2, "0 2 4 5"),
            Question::new(1, "0-2 4-7"),
            Question::new(1, "2-7"),
            Question::new(3, "1-7"),
            Question::new(4, "0-2 4-6"),
            Question::new(2, "all").with_near("mlx5_1"),
            Question::new(2, "all").with_required("2"),
        ],
    },
    MachineQuestions {
        machine: "mixed-models",
        sizes: &[1, 2, 3, 4, 5, 6],
        questions: &[
            Question::new(1, "0-3"),
            Question::new(2, "1-5"),
            Question::new(2, "all").with_required("1"),
        ],
    },
    MachineQuestions {
        machine: "mig-a100",
        sizes: &[1, 2, 3, 7, 8],
        questions: &[
            Question::new(1, "all").with_policy(Packed),
            Question::new(1, "all").with_policy(Distributed),
            Question::new(2, "all").with_policy(Distributed),
        ],
    },
    MachineQuestions {
        machine: "mig-mix",
        sizes: &[1, 2, 3, 4, 7, 8, 9, 14, 28],
        questions: &[
            Question::new(1, "all").with_policy(Packed),
            Question::new(2, "all").with_policy(Packed),
            Question::new(4, "all").with_policy(Distributed),
        ],
    },
    MachineQuestions {
        machine: "mi300x",
        sizes: &[1, 2, 3, 4, 5, 6, 7, 8],
        questions: &[
            Question::new(2, "0 4-7"),
            Question::new(2, "0 1 4-7"),
            Question::new(4, "1-7"),
        ],
    },
    MachineQuestions {
        machine: "mi300x-cpx",
        sizes: &[1, 2, 4, 8, 9, 12, 16, 32, 33],
        questions: &[
            Question::new(1, "0:1-7:7"),
            Question::new(2, "0:7 1:5-1:7 2:0-7:7"),
            Question::new(4, "0:0-0:5 1:0-1:4 2:0-2:7"),
            Question::new(8, "0:1-7:7"),
            Question::new(8, "0:1-0:7 1:1-1:7 5:1-5:7"),
            Question::new(4, "all").with_required("3:3"),
            Question::new(2, "0:1-7:7").with_policy(Packed),
            Question::new(10, "0:1-7:7").with_policy(Packed),
            Question::new(2, "0:1-7:7").with_policy(Distributed),
        ],
    },
];

// === impl Question ===

impl Question {
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

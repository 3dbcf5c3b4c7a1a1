//! Named sets of target modules and rank.

use crate::place::Projection;

/// Target modules and rank under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// The target modules, in every layer; those of no layer once.
    pub targets: &'static [Projection],
    /// Rank per module, 1 to 4.
    pub rank: usize,
}

const QV: &[Projection] = &[Projection::Query, Projection::Value];
const QKVO: &[Projection] =
    &[Projection::Query, Projection::Key, Projection::Value, Projection::AttentionOutput];
const ALL: &[Projection] = &[
    Projection::Query,
    Projection::Key,
    Projection::Value,
    Projection::AttentionOutput,
    Projection::Gate,
    Projection::Up,
    Projection::Down,
];

const FINAL: &[Projection] = &[Projection::FinalHidden];

impl Preset {
    /// All presets. The first four name their modules and have rank 2. The others name a use:
    /// attention only where style and references change, all modules where new facts do.
    pub const ALL: &[Self] = &[
        Self { name: "qv", targets: QV, rank: 2 },
        Self { name: "qkvo", targets: QKVO, rank: 2 },
        Self { name: "all", targets: ALL, rank: 2 },
        Self { name: "final", targets: FINAL, rank: 2 },
        Self { name: "coder", targets: ALL, rank: 4 },
        Self { name: "researcher", targets: ALL, rank: 2 },
        Self { name: "security", targets: QKVO, rank: 4 },
        Self { name: "architect", targets: QKVO, rank: 2 },
        Self { name: "reviewer", targets: QV, rank: 1 },
    ];

    /// The preset of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|preset| preset.name == name).copied()
    }
}

//! Keys of the kernels of mixtures of experts.

/// Largest number of experts of a [`RouterKernel`].
pub const MAX_EXPERTS: u32 = 1024;

/// Largest number of experts of one row.
pub const MAX_USED_EXPERTS: u32 = 32;

/// Function from the logits of a router to the weights of the chosen experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouterScoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Softmax over the chosen experts; the choice is by logits.
    ChosenSoftmax,
    /// Sigmoid of the logits of the chosen experts; the choice is by logits.
    ChosenSigmoid,
    /// Expert after expert by its logit, each with the softmax over the experts that are left and
    /// whose logits are within 2 % of its own (`SparseMixer`, arXiv 2409.12136).
    SparseMixer,
}

impl RouterScoring {
    /// All functions.
    pub const ALL: [Self; 5] =
        [Self::Softmax, Self::Sigmoid, Self::ChosenSoftmax, Self::ChosenSigmoid, Self::SparseMixer];
}

/// Choice of each row's experts, and their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouterKernel {
    /// Number of experts.
    pub experts: u32,
    /// Experts of a row.
    pub used: u32,
    /// Values of a row of logits; those behind the experts are not read.
    pub width: u32,
    /// Function from logits to weights.
    pub scoring: RouterScoring,
    /// Groups of consecutive experts, and the number of groups that a row's experts may be of. A
    /// group has the score of its best expert, or with a bias the sum of its two best.
    pub groups: Option<(u32, u32)>,
    /// A bias per expert is added to the scores for the choice.
    pub biased: bool,
    /// The weights of a row are divided by their sum.
    pub renormalize: bool,
    /// Bits of the factor of the weights.
    pub scale_bits: u32,
}

/// Logits of a router: products of f32 rows with f32 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouterLogitsKernel {
    /// Values per output row.
    pub outputs: u32,
    /// Values per input row.
    pub cols: u32,
    /// A bias per output is added.
    pub biased: bool,
    /// Input rows of a workgroup, 1 or 4. Results do not depend on it.
    pub batch: u32,
}

/// Matrices of all experts, one below the other, and the rows that they are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertStack {
    /// Number of matrices.
    pub experts: u32,
    /// Consecutive pairs of a row and an expert with the same input row; 1: each has its own.
    pub sharing: u32,
}

/// Sort of pairs of a row and an expert by expert, into tiles of pairs of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SortKernel {
    /// Number of experts.
    pub experts: u32,
    /// Number of pairs.
    pub pairs: u32,
    /// Pairs per tile.
    pub tile: u32,
}

/// `y = factor y + bias` in place, by pair of a row and an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertAffineKernel {
    /// Number of experts.
    pub experts: u32,
    /// Values per pair.
    pub cols: u32,
    /// The factor is the weight of the pair; else 1.
    pub weighted: bool,
    /// A bias per expert is added.
    pub biased: bool,
}

/// Beginning of the sum of [`ExpertSumKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SumStart {
    /// Zero.
    Zero,
    /// The output's values.
    Output,
    /// The output's values times the sigmoid of a value of the row: the value `at` of `width`.
    GatedOutput {
        /// Values per row of the gates.
        width: u32,
        /// Index of the gate in a row.
        at: u32,
    },
}

/// Sum of the outputs of a row's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertSumKernel {
    /// Values per row.
    pub cols: u32,
    /// Experts of a row.
    pub used: u32,
    /// Outputs are multiplied by the weights of their pairs.
    pub weighted: bool,
    /// Beginning of the sum.
    pub start: SumStart,
}

/// Factors of the weights of pairs by expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertScaleKernel {
    /// Number of experts.
    pub experts: u32,
    /// Number of pairs.
    pub pairs: u32,
}

impl RouterKernel {
    pub(crate) fn name(&self) -> String {
        let Self { experts, used, width, groups, scale_bits, .. } = self;
        let scoring = format!("{:?}", self.scoring).to_lowercase();
        let groups = groups.map_or(String::new(), |(count, used)| format!("_groups{used}of{count}"));
        let bias = if self.biased { "_biased" } else { "" };
        let norm = if self.renormalize { "_normed" } else { "" };
        format!("route_{scoring}_{used}of{experts}in{width}{groups}{bias}{norm}_scale{scale_bits:x}")
    }
}

impl RouterLogitsKernel {
    pub(crate) fn name(&self) -> String {
        let Self { outputs, cols, batch, .. } = self;
        format!("router_logits_{outputs}x{cols}_b{batch}{}", if self.biased { "_biased" } else { "" })
    }
}

impl SortKernel {
    pub(crate) fn name(&self) -> String {
        format!("sort_{}_pairs_of{}experts_by{}", self.pairs, self.experts, self.tile)
    }

    /// Tiles of all experts, the empty ones included.
    pub(crate) fn tiles(&self) -> u32 {
        self.pairs / self.tile + self.experts
    }
}

impl ExpertStack {
    pub(crate) fn name(&self) -> String {
        format!("_of{}experts_by{}", self.experts, self.sharing)
    }
}

impl ExpertAffineKernel {
    pub(crate) fn name(&self) -> String {
        let Self { experts, cols, .. } = self;
        let weight = if self.weighted { "_weighted" } else { "" };
        format!("expert_affine_{cols}_of{experts}{weight}{}", if self.biased { "_biased" } else { "" })
    }
}

impl ExpertScaleKernel {
    pub(crate) fn name(&self) -> String {
        format!("expert_scale_{}_pairs_of{}experts", self.pairs, self.experts)
    }
}

impl ExpertSumKernel {
    pub(crate) fn name(&self) -> String {
        let start = match self.start {
            SumStart::Zero => String::new(),
            SumStart::Output => "_onto".to_owned(),
            SumStart::GatedOutput { width, at } => format!("_onto_gated{at}of{width}"),
        };
        let weight = if self.weighted { "_weighted" } else { "" };
        format!("expert_sum_{}_of{}{weight}{start}", self.cols, self.used)
    }
}

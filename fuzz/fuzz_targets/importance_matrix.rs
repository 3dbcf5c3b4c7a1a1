//! Reads any bytes, or entries that the input describes in either file form, as an importance
//! matrix; a matrix that is read is written, read again, and weights the errors of a small model.

#![no_main]

use std::ops::ControlFlow;
use std::sync::LazyLock;

use gguf_rs_lite::{Gguf, Metadata, TensorInfo, TensorType, Writer};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ruvllm_fuzz::FOLDER;
use ruvllm_kernels::ThreadPool;
use ruvllm_models::ImportanceMatrix;
use ruvllm_models::quantize::{QuantizeOptions, QuantizeProgress, Recipe, quantize};

/// Columns of all matrices of the model.
const COLUMNS: u64 = 32;

/// Matrices of the model: name, rows, experts; and names of none.
const NAMES: [(&str, u64, u64); 7] = [
    ("token_embd.weight", 4, 1),
    ("blk.0.attn_q.weight", 2, 1),
    ("blk.1.ffn_down.weight", 3, 1),
    ("blk.1.ffn_up_exps.weight", 2, 2),
    ("output.weight", 4, 1),
    ("blk.7.attn_q.weight", 0, 0),
    ("", 0, 0),
];

/// An importance matrix.
#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// Any bytes.
    Bytes(&'a [u8]),
    /// llama.cpp's older form.
    Dat { entries: Vec<Sums>, announced: i8, windows: Option<i32>, damage: Vec<(u16, u8)> },
    /// llama.cpp's GGUF form.
    Gguf { entries: Vec<Sums>, kind: Kind, windows: Option<u64>, damage: Vec<(u16, u8)> },
}

/// Sums of one tensor.
#[derive(Arbitrary, Debug)]
struct Sums {
    name: u8,
    /// Numbers of columns and of inputs of the older form, where they are not those of the model.
    columns: Option<i32>,
    inputs: Option<i32>,
    /// Rows of sums and counts of the GGUF form, where they are not those of the model.
    matrices: Option<u8>,
    counts: Option<u8>,
    /// Bits of the sums, and behind them those of the counts, over and over.
    values: Vec<u32>,
    /// True for counts of another type.
    is_typed: bool,
}

/// Values of `general.type`.
#[derive(Arbitrary, Debug)]
enum Kind {
    Matrix,
    Other,
    Absent,
}

impl Sums {
    fn place(&self) -> (&'static str, u64, u64) {
        NAMES[usize::from(self.name) % NAMES.len()]
    }

    /// `n` values: those of the input over and over, or ones.
    fn values(&self, n: usize) -> Vec<u8> {
        let values = self.values.iter().copied().cycle().chain(std::iter::repeat(1.0_f32.to_bits()));
        values.take(n).flat_map(u32::to_le_bytes).collect()
    }

    fn write_dat(&self, bytes: &mut Vec<u8>) {
        let (name, _, experts) = self.place();
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.bytes());
        let columns = COLUMNS as i32 * experts.max(1) as i32;
        bytes.extend(self.inputs.unwrap_or(7).to_le_bytes());
        bytes.extend(self.columns.unwrap_or(columns).to_le_bytes());
        bytes.extend(self.values(columns as usize));
    }

    /// Tensors of sums and counts with their data.
    fn tensors(&self) -> Option<[(TensorInfo, Vec<u8>); 2]> {
        let (name, _, experts) = self.place();
        let matrices = self.matrices.map_or(experts.max(1), u64::from);
        let counts = self.counts.map_or(matrices, u64::from);
        let counted = if self.is_typed { TensorType::I32 } else { TensorType::F32 };
        let tensor = |suffix, dims: [u64; 2], tensor_type| {
            let info = TensorInfo::new(format!("{name}{suffix}"), dims, tensor_type).ok()?;
            let data = self.values((dims[0] * dims[1]) as usize);
            Some((info, data))
        };
        Some([
            tensor(".in_sum2", [COLUMNS, matrices], TensorType::F32)?,
            tensor(".counts", [1, counts], counted)?,
        ])
    }
}

impl Input<'_> {
    fn bytes(&self) -> Option<Vec<u8>> {
        let (mut bytes, damage) = match self {
            Self::Bytes(bytes) => return Some(bytes.to_vec()),
            Self::Dat { entries, announced, windows, damage } => {
                let n_entries = entries.len() as i32 + i32::from(*announced);
                let mut bytes = n_entries.to_le_bytes().to_vec();
                entries.iter().for_each(|entry| entry.write_dat(&mut bytes));
                bytes.extend(windows.iter().flat_map(|windows| windows.to_le_bytes()));
                (bytes, damage)
            }
            Self::Gguf { entries, kind, windows, damage } => {
                let mut metadata = Metadata::new();
                match kind {
                    Kind::Matrix => drop(metadata.insert("general.type", "imatrix")),
                    Kind::Other => drop(metadata.insert("general.type", "model")),
                    Kind::Absent => {}
                }
                if let Some(windows) = windows {
                    metadata.insert("imatrix.chunk_count", *windows);
                }
                let tensors: Vec<_> = entries.iter().filter_map(Sums::tensors).flatten().collect();
                let infos = tensors.iter().map(|(info, _)| info.clone());
                // Two entries of one name are no file.
                let mut writer = Writer::new(Vec::new(), &metadata, infos).ok()?;
                for (info, data) in &tensors {
                    writer.write_tensor(info, data).ok()?;
                }
                (writer.finish().ok()?, damage)
            }
        };
        let len = bytes.len();
        for &(place, value) in damage {
            bytes[usize::from(place) % len] ^= value;
        }
        Some(bytes)
    }
}

/// A model with the matrices of [`NAMES`].
static MODEL: LazyLock<Gguf> = LazyLock::new(|| {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    let real = || NAMES.into_iter().filter(|&(_, rows, _)| rows > 0);
    let info = |(name, rows, experts): (&str, u64, u64)| {
        let dims = [COLUMNS, rows, experts];
        TensorInfo::new(name, &dims[..if experts > 1 { 3 } else { 2 }], TensorType::F32).expect("a tensor")
    };
    let mut writer = Writer::new(Vec::new(), &metadata, real().map(info)).expect("a header");
    for (place, tensor) in real().map(info).enumerate() {
        let value = |index: u64| ((index * 7 + place as u64) % 23) as f32 / 8.0 - 1.25;
        let data: Vec<u8> = (0..tensor.bytes() / 4).flat_map(|index| value(index).to_le_bytes()).collect();
        writer.write_tensor(&tensor, &data).expect("its size");
    }
    Gguf::from_owner(writer.finish().expect("complete")).expect("a file")
});

static POOL: LazyLock<ThreadPool> = LazyLock::new(ThreadPool::single);

fuzz_target!(|input: Input<'_>| {
    let Some(bytes) = input.bytes() else { return };
    let Ok(matrix) = ImportanceMatrix::from_bytes(bytes) else { return };
    assert!(!matrix.is_empty());
    for (name, _, _) in NAMES {
        let means = matrix.means(name).unwrap_or_default();
        assert!(means.iter().all(|mean| *mean >= 0.0), "{name}: {means:?}");
    }
    // Names that are as long as a tensor's may be have no room for a suffix.
    if let Ok(written) = matrix.to_bytes() {
        let again = ImportanceMatrix::from_bytes(written).expect("whatever is written can be read");
        assert_eq!(again.len(), matrix.len());
        for (name, _, _) in NAMES {
            assert_eq!(again.means(name), matrix.means(name), "{name}");
        }
    }
    let options = QuantizeOptions { pure: true, importance: Some(&matrix), ..QuantizeOptions::default() };
    let recipe = Recipe::from_name("Q4_0").expect("a recipe");
    let output = FOLDER.join("quantized.gguf");
    let keep = &mut |_: QuantizeProgress<'_>| ControlFlow::Continue(());
    if quantize(&*MODEL, &output, recipe, &options, &POOL, keep).is_ok() {
        let file = Gguf::open(&output).expect("a file");
        assert_eq!(file.tensors().count(), MODEL.tensors().count());
        for tensor in file.tensors().filter(|tensor| tensor.tensor_type == TensorType::Q4_0) {
            // The scale of a quant block, two bytes before 16 of quants.
            for block in file.data(tensor).expect("its data").as_ref().chunks_exact(18) {
                let scale = u16::from_le_bytes([block[0], block[1]]);
                assert!(scale & 0x7c00 != 0x7c00, "{}: a scale that is not finite", tensor.name);
            }
        }
    }
});

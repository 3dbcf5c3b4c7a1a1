//! Semantic search in miniature: embeddings from one attention layer with 8-bit weights. They are
//! searched in full precision, as 8-bit integers, and by their signs.

use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
    KvView, Mask,
};
use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
use ruvllm_kernels::rows::Norm;
use ruvllm_kernels::vector::{Metric, VectorRows};
use ruvllm_kernels::{Error, Kernels, ThreadPool};

const DIM: usize = 64;
const HEADS: usize = 2;
const HEAD_DIM: usize = DIM / HEADS;
/// Tokens of a document, all from the words of its topic.
const TOKENS: usize = 12;
const TOPICS: usize = 5;
const WORDS_PER_TOPIC: usize = 8;
const DOCUMENTS: usize = 40;

/// Reproducible pseudorandom numbers in -1..1 (Lehmer generator, multiplier of Park and Miller).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0 * 48_271 % 0x7fff_ffff;
        self.0 as f32 / 0x3fff_ffff as f32 - 1.0
    }

    fn take(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| size * self.next()).collect()
    }
}

/// Word embeddings, and one attention layer.
struct Embedder {
    kernels: Kernels,
    pool: ThreadPool,
    /// Word embeddings, `[TOPICS * WORDS_PER_TOPIC, DIM]`.
    words: Vec<f32>,
    /// Weights of queries, keys and values, `[3 * DIM, DIM]`, in blocks of 8-bit integers.
    qkv: PackedMatrix,
    rope: RopeTable,
}

impl Embedder {
    fn new(numbers: &mut Numbers) -> Result<Self, Error> {
        let weights = numbers.take(3 * DIM * DIM, 0.2);
        let format = WeightFormat::Q8_0;
        let mut bytes = vec![0; 3 * DIM * format.row_bytes(DIM).expect("rows of whole blocks")];
        format.quantize(&weights, &mut bytes);
        println!("weights: {} values in {} bytes ({})", weights.len(), bytes.len(), format.name());
        Ok(Self {
            kernels: Kernels::detect()?,
            pool: ThreadPool::new(2)?,
            words: numbers.take(TOPICS * WORDS_PER_TOPIC * DIM, 1.0),
            qkv: PackedMatrix::new(format, 3 * DIM, DIM, SharedBytes::new(bytes))?,
            rope: RopeTable::new(&RopeConfig::new(10_000.0, HEAD_DIM), TOKENS)?,
        })
    }

    /// Embedding of a document: normalization, projection and causal attention, summed over its
    /// tokens.
    fn embed(&self, tokens: &[usize]) -> Vec<f32> {
        let (kernels, n) = (&self.kernels, tokens.len());
        let embedded: Vec<f32> =
            tokens.iter().flat_map(|token| &self.words[token * DIM..][..DIM]).copied().collect();
        let mut x = Activations::new();
        kernels.norm(Norm::Rms { weight: &[1.0; DIM] }, 1e-6, &embedded, x.resize(n, DIM));
        x.quantize(kernels, &self.pool);
        let mut qkv = vec![0.0; n * 3 * DIM];
        kernels.matmul(&self.pool, &self.qkv, &x, &mut qkv);
        // Splits [tokens, 3, DIM] into three times [tokens, DIM].
        let [mut q, mut k, v] = [0, 1, 2].map(|part| -> Vec<f32> {
            qkv.chunks(3 * DIM).flat_map(|row| &row[part * DIM..][..DIM]).copied().collect()
        });
        for rows in [&mut q, &mut k] {
            kernels.rope(&self.rope, RopeLayout::Halves, 0..n, rows, HEADS, HEAD_DIM);
        }
        let mut mixed = vec![0.0; n * DIM];
        let layout = KvLayout::new(KvFormat::F32, HEADS, 32, HEAD_DIM).expect("F32 takes heads of any size");
        let mut memory = KvBuffer::zeroed(2 * layout.plane_bytes()).expect("a few KiB of memory");
        let (keys, values) = memory.as_bytes_mut().split_at_mut(layout.plane_bytes());
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Keys, keys), 0, &k);
        kernels.store_kv(KvPlaneMut::new(layout, KvRole::Values, values), 0, &v);
        let blocks = [KvBlock {
            keys: KvPlane::new(layout, KvRole::Keys, keys),
            values: KvPlane::new(layout, KvRole::Values, values),
        }];
        let kv = KvView::new(&blocks, n);
        let shape = AttentionShape {
            n_heads: HEADS,
            n_kv_heads: HEADS,
            head_dim: HEAD_DIM,
            query_start: 0,
            n_queries: n,
            scale: (HEAD_DIM as f32).powf(-0.5),
            mask: Mask::CAUSAL,
            soft_cap: None,
            alibi: None,
        };
        kernels.attention(&self.pool, &shape, &q, &kv, &mut mixed, &mut AttentionScratch::new());
        let mut mean = vec![0.0; DIM];
        mixed.chunks(DIM).for_each(|row| kernels.add_assign(&mut mean, row));
        mean
    }
}

fn main() -> Result<(), Error> {
    let mut numbers = Numbers(2026);
    let embedder = Embedder::new(&mut numbers)?;
    let kernels = &embedder.kernels;
    let mut document = |topic: usize| -> Vec<f32> {
        let mut word = || (((numbers.next() + 1.0) * 4.0) as usize).min(WORDS_PER_TOPIC - 1);
        let tokens: Vec<usize> = (0..TOKENS).map(|_| topic * WORDS_PER_TOPIC + word()).collect();
        embedder.embed(&tokens)
    };
    let vectors: Vec<f32> = (0..DOCUMENTS).flat_map(|i| document(i % TOPICS)).collect();

    let mut int8 = vec![0; vectors.len()];
    let rows = vectors.chunks(DIM).zip(int8.chunks_mut(DIM));
    let scales: Vec<f32> = rows.map(|(x, codes)| kernels.quantize_int8(x, codes)).collect();
    let mut bits = vec![0; DOCUMENTS * DIM / 64];
    vectors.chunks(DIM).zip(bits.chunks_mut(DIM / 64)).for_each(|(x, words)| kernels.quantize_bits(x, words));

    for topic in 0..TOPICS {
        let query = document(topic);
        let mut exact = [0.0; DOCUMENTS];
        kernels.distances(Metric::Cosine, VectorRows::F32(&query), VectorRows::F32(&vectors), &mut exact);
        let (mut codes, mut rounded) = ([0; DIM], [0.0; DOCUMENTS]);
        let scale = [kernels.quantize_int8(&query, &mut codes)];
        let query_rows = VectorRows::Int8 { values: &codes, scales: &scale };
        let rows = VectorRows::Int8 { values: &int8, scales: &scales };
        kernels.distances(Metric::Cosine, query_rows, rows, &mut rounded);
        let (mut signs, mut differing) = ([0; DIM / 64], [0; DOCUMENTS]);
        kernels.quantize_bits(&query, &mut signs);
        kernels.hammings(&signs, &bits, &mut differing);

        // Ten candidates by Hamming distance, then the best of them by the exact distance.
        let mut candidates = Vec::new();
        kernels.top_k(&differing.map(|bits| -(bits as f32)), 10, &mut candidates);
        let by_bits = candidates.iter().map(|&i| i as usize).min_by(|&a, &b| exact[a].total_cmp(&exact[b]));
        let nearest = |distances: [f32; DOCUMENTS]| kernels.argmax(&distances.map(|distance| -distance));
        let found = [nearest(exact), nearest(rounded), by_bits].map(|best| best.expect("documents"));
        assert!(found.iter().all(|best| best % TOPICS == topic), "a document of another topic is nearest");
        let [f32, int8, bits] = found.map(|best| format!("{best:2} at {:.3}", exact[best]));
        println!("topic {topic}: nearest by f32 {f32}, by int8 {int8}, by bits and f32 {bits}");
    }
    Ok(())
}

//! KIVI formats against the goldens in `tests/data/kv` (see its README): dequantized values and
//! attention.

use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole,
    KvScratch, KvView, Mask,
};
use ruvllm_kernels::{Kernels, ThreadPool};
use safetensors::SafeTensors;
use serde_json::Value;

const MANIFEST: &str = include_str!("../../data/kv/manifest.json");
const TENSORS: [(&str, &[u8]); 2] = [
    ("plain", include_bytes!("../../data/kv/plain.safetensors")),
    ("ragged", include_bytes!("../../data/kv/ragged.safetensors")),
];

/// Tokens of a block: a group of keys.
const BLOCK: usize = 32;

/// One case, one width.
struct Golden<'a> {
    tensors: SafeTensors<'a>,
    case: &'a Value,
    result: &'a Value,
    heads: usize,
    tokens: usize,
    dim: usize,
    format: KvFormat,
}

impl Golden<'_> {
    fn f32s(&self, name: &str) -> Vec<f32> {
        let data = self.tensors.tensor(name).unwrap();
        data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        let data = self.tensors.tensor(name).unwrap();
        data.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// The tensor of this width.
    fn quantized(&self, name: &str) -> String {
        format!("{}.{name}", self.result["prefix"].as_str().unwrap())
    }

    fn number(&self, name: &str) -> f64 {
        self.result[name].as_f64().unwrap()
    }

    fn layout(&self, format: KvFormat) -> KvLayout {
        KvLayout::new(format, self.heads, BLOCK, self.dim).unwrap()
    }

    /// Blocks of keys or values; keys after the last whole group stay in f32.
    fn blocks(&self, kernels: Kernels, role: KvRole, format: KvFormat) -> Vec<(KvLayout, KvBuffer)> {
        let rows = self.f32s(match role {
            KvRole::Keys => "k",
            KvRole::Values => "v",
        });
        let key_tokens = self.case["quantized_key_tokens"].as_u64().unwrap() as usize;
        let mut scratch = KvScratch::new();
        let blocks = (0..self.tokens).step_by(BLOCK).map(|first| {
            let tokens = first..(first + BLOCK).min(self.tokens);
            let rows: Vec<f32> = tokens
                .flat_map(|token| (0..self.heads).map(move |head| head * self.tokens + token))
                .flat_map(|row| rows[row * self.dim..][..self.dim].iter().copied())
                .collect();
            let whole = role == KvRole::Values || first < key_tokens;
            let (wide, layout) = (self.layout(KvFormat::F32), self.layout(format));
            let mut plane = KvBuffer::zeroed(wide.plane_bytes()).unwrap();
            kernels.store_kv(KvPlaneMut::new(wide, role, plane.as_bytes_mut()), 0, &rows);
            if !whole {
                return (wide, plane);
            }
            let mut to = KvBuffer::zeroed(layout.plane_bytes()).unwrap();
            let from = KvPlane::new(wide, role, plane.as_bytes());
            kernels.convert_kv(from, KvPlaneMut::new(layout, role, to.as_bytes_mut()), &mut scratch);
            (layout, to)
        });
        blocks.collect()
    }

    /// The dequantized blocks, `[heads, tokens, dim]`.
    fn read(&self, kernels: Kernels, role: KvRole, blocks: &[(KvLayout, KvBuffer)]) -> Vec<f32> {
        let mut scratch = KvScratch::new();
        let mut rows = vec![f32::NAN; self.heads * self.tokens * self.dim];
        for (row, out) in rows.chunks_exact_mut(self.dim).enumerate() {
            let (head, token) = (row / self.tokens, row % self.tokens);
            let (layout, plane) = &blocks[token / BLOCK];
            let position = token % BLOCK..token % BLOCK + 1;
            let plane = KvPlane::new(*layout, role, plane.as_bytes());
            kernels.read_kv(plane, head, position, out, &mut scratch);
        }
        rows
    }

    /// Attention of the four queries of each head (a group of query heads), all tokens visible.
    fn attend(
        &self,
        kernels: Kernels,
        keys: &[(KvLayout, KvBuffer)],
        values: &[(KvLayout, KvBuffer)],
    ) -> Vec<f32> {
        let mut blocks = Vec::new();
        for ((key_layout, keys), (value_layout, values)) in keys.iter().zip(values) {
            let keys = KvPlane::new(*key_layout, KvRole::Keys, keys.as_bytes());
            blocks.push(KvBlock {
                keys,
                values: KvPlane::new(*value_layout, KvRole::Values, values.as_bytes()),
            });
        }
        let kv = KvView::new(&blocks, self.tokens);
        let shape = AttentionShape {
            n_heads: 4 * self.heads,
            n_kv_heads: self.heads,
            head_dim: self.dim,
            query_start: self.tokens - 1,
            n_queries: 1,
            scale: 1.0 / (self.dim as f32).sqrt(),
            mask: Mask::CAUSAL,
            soft_cap: None,
            alibi: None,
        };
        let q = self.f32s("q");
        let mut out = vec![f32::NAN; q.len()];
        kernels.attention(&ThreadPool::single(), &shape, &q, &kv, &mut out, &mut AttentionScratch::new());
        out
    }
}

/// Calls `check` for every case, width and instruction set.
fn each(check: impl Fn(&Golden<'_>, Kernels, &str)) {
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let mut checked = 0;
    for case in manifest["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (_, bytes) = TENSORS.iter().find(|(file, _)| *file == name).unwrap();
        let size = |key: &str| usize::try_from(case[key].as_u64().unwrap()).unwrap();
        for result in case["results"].as_array().unwrap() {
            let golden = Golden {
                tensors: SafeTensors::deserialize(bytes).unwrap(),
                case,
                result,
                heads: size("heads"),
                tokens: size("tokens"),
                dim: size("head_dim"),
                format: format!("kivi{}", result["bits"]).parse().unwrap(),
            };
            for kernels in Kernels::available() {
                check(&golden, kernels, &format!("{name}, {}, {}", golden.format, kernels.isa()));
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 4);
}

fn mean_squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>() / a.len() as f64
}

#[test]
fn dequantized_keys_and_values_are_the_references() {
    each(|golden, kernels, what| {
        for (role, name) in [(KvRole::Keys, "k"), (KvRole::Values, "v")] {
            let blocks = golden.blocks(kernels, role, golden.format);
            let found = golden.read(kernels, role, &blocks);
            let expected = golden.f32s(&golden.quantized(name));
            let step = golden.number(&format!("max_step_{name}")) as f32;
            let mut others = 0;
            for (found, expected) in found.iter().zip(&expected) {
                let error = (found - expected).abs();
                if error > 1e-5 + 1e-6 * expected.abs() {
                    // Close to the midpoint of two steps.
                    assert!(error <= 1.001 * step, "{what} {name}: {found}, not {expected}");
                    others += 1;
                }
            }
            assert!(1000 * others <= found.len(), "{what} {name}: {others} of {} are off", found.len());

            // The manifest counts the keys that are quantized.
            let original = golden.f32s(name);
            let share = match role {
                KvRole::Keys => {
                    golden.case["quantized_key_tokens"].as_u64().unwrap() as f64 / golden.tokens as f64
                }
                KvRole::Values => 1.0,
            };
            let error = mean_squared_error(&found, &original) / share;
            let reference = golden.number(&format!("mse_{name}"));
            assert!((error / reference - 1.0).abs() < 0.01, "{what} {name}: {error} for {reference}");
        }
    });
}

#[test]
fn attention_over_quantized_keys_and_values_is_the_references() {
    each(|golden, kernels, what| {
        let keys = golden.blocks(kernels, KvRole::Keys, golden.format);
        let values = golden.blocks(kernels, KvRole::Values, golden.format);
        let found = golden.attend(kernels, &keys, &values);
        let expected = golden.f64s(&golden.quantized("attn"));
        for (found, expected) in found.iter().zip(expected) {
            // The error of attention itself: see `Kernels::attention`.
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 2e-5, "{what}: {found}, not {expected}");
        }
    });
}

/// `ragged` has outlier dimensions; `q4` has a scale per token.
#[test]
fn keys_per_dimension_beat_keys_per_token_where_there_are_outliers() {
    each(|golden, kernels, what| {
        let per_token = golden.number("mse_k_if_quantized_per_token");
        let has_outliers = golden.case["outliers"].as_u64().unwrap() > 0;
        let factor = per_token / golden.number("mse_k");
        assert_eq!(factor > 8.0, has_outliers, "{what}: the reference's own factor is {factor}");
        if has_outliers && golden.format.name() == "kivi4" {
            let error = |format| {
                let blocks = golden.blocks(kernels, KvRole::Keys, format);
                mean_squared_error(&golden.read(kernels, KvRole::Keys, &blocks), &golden.f32s("k"))
            };
            assert!(8.0 * error(golden.format) < error(KvFormat::Q4), "{what}");
        }
    });
}

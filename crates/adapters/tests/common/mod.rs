//! Adapters of a small model as files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ruvllm_adapters::{AdapterStore, BaseModel, Error, LoraFile, Part};
use ruvllm_memory::{PagePool, PoolConfig};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::TempDir;

pub(crate) fn base(interleaved_heads: bool) -> Arc<BaseModel> {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 6,
        query_dim: 8,
        kv_dim: 4,
        head_dim: 4,
        ffn_dim: 10,
        vocab_size: 12,
        interleaved_heads,
        joint_attention: false,
        joint_feed_forward: false,
    })
}

pub(crate) fn pool() -> PagePool {
    PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(8 << 20) }).unwrap()
}

/// A PEFT folder that changes queries and values of a layer, rank 2, alpha 8.
pub(crate) fn peft(layer: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8});
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let mut tensors = BTreeMap::new();
    for (module, outputs) in [("q_proj", 8), ("v_proj", 4)] {
        for (which, shape) in [("A", [2, 6]), ("B", [outputs, 2])] {
            let name =
                format!("base_model.model.model.layers.{layer}.self_attn.{module}.lora_{which}.weight");
            let values = (0..shape[0] * shape[1]).map(|i| (i as f32 - 3.0) / 8.0);
            tensors.insert(name, (shape.to_vec(), values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()));
        }
    }
    let views = tensors.iter().map(|(name, (shape, data))| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
    });
    let weights = safetensors::serialize(views, None).unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), weights).unwrap();
    folder
}

pub(crate) fn add(store: &AdapterStore, name: &str, source: &Path, replace: bool) -> Result<(), Error> {
    let file = LoraFile::open(source)?;
    store.add(name, &base(true), &[Part { file: &file, scale: 0.5 }], "source", replace).map(drop)
}
